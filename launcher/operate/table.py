"""A table of an answer: with rich on a terminal, in plain columns for files and other programs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal

from launcher.telling import answer

if TYPE_CHECKING:
    from rich.table import Table

GIVE_WAY: Final = ("host", "last event", "note", "why")
"""Columns that become narrow on a narrow terminal; what one may have to type again, such as a node, stays whole."""


def empty(columns: Sequence[str], numbers: Collection[str] = ()) -> Table:
    """A table of rich with these columns; `numbers` are those that stand to the right."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in columns:
        side: Literal["left", "right"] = "right" if name in numbers else "left"
        cut: Literal["ellipsis", "fold"] = "ellipsis" if name == "host" else "fold"
        table.add_column(name, justify=side, no_wrap=name not in GIVE_WAY, overflow=cut)
    return table


def show(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Write a table; `styles` are rich's, one for each row."""
    if sys.stdout.isatty():
        _draw(columns, rows, styles)
        return
    everything = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in everything)
    answer("".join(f"{line.rstrip()}\n" for line in lines))


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    from rich.console import Console
    from rich.text import Text

    table = empty(columns)
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*map(Text, row), style=style)
    console = Console()
    with console.capture() as drawn:  # It would end the process by itself where nobody reads.
        console.print(table)
    answer(drawn.get())
