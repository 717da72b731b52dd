"""A table of an answer: with rich on a terminal, in plain columns for files and other programs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from launcher.system.stdout import print_result

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

GIVE_WAY: Final = ("host", "last event", "note", "why")
"""Columns that become narrow on a narrow terminal; what one may have to type again, such as a node, stays whole."""
NARROW: Final = 6
"""No narrower than this: where that is not enough, rows take more than one line, and nothing is cut."""
GAP: Final = 2


@dataclass(frozen=True, slots=True)
class _RenderedTable:
    """A table, or where its columns do not fit, whole lines that are folded at the end of the terminal's."""

    table: RenderableType
    width_min: int
    lines: Sequence[RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.width_min <= options.max_width:
            yield self.table
        else:
            yield from self.lines


def render_rich(
    columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str], numbers: Collection[str] = ()
) -> RenderableType:
    """A table of rich; `styles` are rich's, one for each row, and `numbers` the columns that stand to the right."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
    for name in columns:
        side: Literal["left", "right"] = "right" if name in numbers else "left"
        cut: Literal["ellipsis", "fold"] = "ellipsis" if name == "host" else "fold"
        table.add_column(name, justify=side, no_wrap=name not in GIVE_WAY, overflow=cut)
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*map(Text, row), style=style)
    width_min = GAP * (len(columns) - 1)
    for name, cells in zip(columns, zip(columns, *rows, strict=True), strict=True):
        widest = max(map(cell_len, cells))
        width_min += min(widest, NARROW) if name in GIVE_WAY else widest
    head, *lines = render_plain(columns, rows)
    folded = [Text(line, style, overflow="fold") for line, style in zip(lines, styles, strict=True)]
    return _RenderedTable(table, width_min, [Text(head, "bold"), *folded])


def render_plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same in plain columns, line by line."""
    everything = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in everything]


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Write a table; `styles` are rich's, one for each row."""
    if sys.stdout.isatty():
        draw(render_rich(columns, rows, styles))
    else:
        print_result("".join(f"{line}\n" for line in render_plain(columns, rows)))


def draw(what: RenderableType) -> None:
    """Write something of rich to the terminal."""
    from rich.console import Console

    console = Console()
    with console.capture() as captured:  # It would end the process by itself where nobody reads.
        console.print(what)
    print_result(captured.get())
