"""The block as lines for a terminal. Imports rich, which only a terminal needs."""

from __future__ import annotations

from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.style import Style

from launcher.terminal.content import BlockContent
from launcher.text.sanitize import sanitize_line

BAR_CELLS = 24
NARROW = 20
"""On a terminal of fewer columns there is no block."""


def lines(block: BlockContent, width: int) -> tuple[bytes, ...]:
    """Three lines at most, none wider than the terminal less one column, so that none ever wraps."""
    room = width - 1
    if room < NARROW:
        return ()
    first = [Segment(f"{block.job}", Style(bold=True)), Segment(f" · {block.world}" if block.world else "")]
    rows = [[Segment("─" * room, Style(dim=True))], first, [Segment(block.state)]]
    if block.step:
        rows.append([Segment(block.step, Style(bold=True)), *_bar(block.done), Segment(f"  {block.rest}")])
    return tuple(_line(row, room) for row in rows)


def _bar(done: float | None) -> list[Segment]:
    if done is None:
        return []
    console = Console(width=BAR_CELLS, color_system="standard", force_terminal=True, legacy_windows=False)
    bar = ProgressBar(total=1.0, completed=done, width=BAR_CELLS, complete_style="green", finished_style="green")
    drawn = [segment for segment in console.render(bar) if segment.text != "\n"]
    return [Segment("  "), *drawn, Segment(f" {100 * done:.0f} %")]


def _line(row: list[Segment], room: int) -> bytes:
    """One line, cut to the room that there is."""
    out, used = [], 0
    for segment in row:
        text = sanitize_line(segment.text) if segment.text.strip() else segment.text
        text = segment.text if text == segment.text.rstrip() else text  # Blanks at the end belong to it.
        if used + cell_len(text) > room:
            text = set_cell_size(text, max(room - used - 1, 0)) + "…"
        used += cell_len(text)
        out.append(segment.style.render(text, color_system=ColorSystem.STANDARD) if segment.style else text)
        if used >= room:
            break
    return "".join(out).encode(errors="replace")
