"""Tables: drawn by rich on a terminal, in plain columns for files and other programs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from launcher.system.stdout import print_result

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

GIVE_WAY: Final = ("host", "last event", "note", "why")
"""Columns that shrink on a narrow terminal. Values that a user may have to type, such as a node, are never cut."""
NARROW: Final = 6
"""The smallest width of a column. If that is still too wide, rows take several lines, and nothing is cut."""
GAP: Final = 2


@dataclass(frozen=True, slots=True)
class _RenderedTable:
    """A table; if its columns do not fit, plain lines that wrap at the width of the terminal."""

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
    """Return a table for rich. `styles` has a rich style for each row; the columns in `numbers` are right-aligned."""
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
    """Return the lines of the same table in plain columns."""
    everything = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in everything]


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Write a table. `styles` has a style of rich for each row."""
    if sys.stdout.isatty():
        draw(render_rich(columns, rows, styles))
    else:
        print_result("".join(f"{line}\n" for line in render_plain(columns, rows)))


def draw(what: RenderableType) -> None:
    """Write a renderable of rich to the terminal."""
    from rich.console import Console

    console = Console()
    with console.capture() as captured:  # Otherwise rich ends the process when stdout is closed.
        console.print(what)
    print_result(captured.get())
