"""A table of an answer: with rich on a terminal, in plain columns for files and other programs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal

from launcher.telling import answer

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

GIVE_WAY: Final = ("host", "last event", "note", "why")
"""Columns that become narrow on a narrow terminal; what one may have to type again, such as a node, stays whole."""


def drawn(
    columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str], numbers: Collection[str] = ()
) -> Table:
    """A table of rich; `styles` are rich's, one for each row, and `numbers` the columns that stand to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        side: Literal["left", "right"] = "right" if name in numbers else "left"
        cut: Literal["ellipsis", "fold"] = "ellipsis" if name == "host" else "fold"
        table.add_column(name, justify=side, no_wrap=name not in GIVE_WAY, overflow=cut)
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*map(Text, row), style=style)
    return table


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The same in plain columns, line by line."""
    everything = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in everything]


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Write a table; `styles` are rich's, one for each row."""
    if sys.stdout.isatty():
        draw(drawn(columns, rows, styles))
        return
    answer("".join(f"{line}\n" for line in plain(columns, rows)))


def draw(what: RenderableType) -> None:
    """Write something of rich to the terminal."""
    from rich.console import Console

    console = Console()
    with console.capture() as captured:  # It would end the process by itself where nobody reads.
        console.print(what)
    answer(captured.get())
