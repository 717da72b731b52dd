"""The live status of a node on a terminal: drawn below the scrolling text, erased before any other output.

Imports rich, which only a terminal needs.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from rich import console as rich_console
from rich.cells import cell_len, set_cell_size
from rich.color import ColorSystem
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.style import Style

from launcher.logs.console import Console
from launcher.terminal.content import BlockContent
from launcher.terminal.screen import TerminalScreen
from launcher.terminal.tty import in_foreground
from launcher.text.sanitize import sanitize_line

EVERY_S: Final = 0.25
"""Interval between two updates of the status."""
BETWEEN_S: Final = 0.03
"""Minimum time between two redraws after text; within it, the last text triggers the redraw."""
PATIENCE_S: Final = 1.0
"""Time that the block waits for the rest of an incomplete character before it is drawn anyway."""
ROWS_LEFT: Final = 4
"""Minimum lines for the text; a smaller terminal shows no block."""
NARROW: Final = 20
"""A terminal with fewer columns shows no block."""
BAR_CELLS: Final = 24


class StatusBlock:
    """Draws the block between a console and its terminal."""

    def __init__(self, console: Console, terminal: int, look: Callable[[], BlockContent | None]) -> None:
        """Draw what `look` returns (None: nothing). `terminal` is the descriptor that the console writes to."""
        self._console = console
        self._terminal = terminal
        self._look = look
        self._screen = TerminalScreen()
        self._loop = asyncio.get_running_loop()
        self._wanted: tuple[bytes, ...] = ()
        self._size = os.terminal_size((0, 0))
        self._drawn_at = self._text_at = float("-inf")
        self._timer = self._loop.call_later(EVERY_S, self._tick)
        self._soon: asyncio.TimerHandle | None = None
        self._stops = signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        if self._stops:
            self._loop.add_signal_handler(signal.SIGTSTP, self._stop)
        console.around = self

    def close(self) -> None:
        """Erase the block and restore the terminal."""
        self._timer.cancel()
        if self._soon is not None:
            self._soon.cancel()
        if self._stops:
            self._loop.remove_signal_handler(signal.SIGTSTP)
        self._erase()
        self._console.around = None

    # Called by the console.

    def text(self, data: bytes) -> bytes:
        """Return what to write to show these bytes."""
        now = self._text_at = time.monotonic()
        out = self._screen.text(data)
        if now - self._drawn_at >= BETWEEN_S:
            return out + self._draw(now)
        if self._soon is None:
            self._soon = self._loop.call_later(BETWEEN_S, self._draw_soon)
        return out

    def lost(self) -> None:
        """Note that output was dropped."""
        self._screen.forget()

    # Time and signals.

    def _tick(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._tick)
        try:
            size = os.get_terminal_size(self._terminal)
        except OSError:
            size = self._size
        seen = in_foreground(self._terminal)
        if not seen or size != self._size:
            self._console.write_raw(self._screen.wipe())
        self._size, self._wanted = size, self._lines(size) if seen else ()
        self._console.write_raw(self._draw(time.monotonic()))

    def _lines(self, size: os.terminal_size) -> tuple[bytes, ...]:
        if (block := self._look()) is None:
            return ()
        found = lines(block, size.columns)
        return found if size.lines >= len(found) + ROWS_LEFT else ()

    def _draw_soon(self) -> None:
        self._soon = None
        self._console.write_raw(self._draw(time.monotonic()))

    def _draw(self, now: float) -> bytes:
        if self._console.waiting:  # Text has priority.
            return b""
        if self._screen.inside and now - self._text_at >= PATIENCE_S:
            self._screen.forget()
        out = self._screen.draw(self._wanted)
        if out:
            self._drawn_at = now
        return out

    def _erase(self) -> None:
        self._console.write_raw(self._screen.erase())

    def _stop(self) -> None:
        """Handle Ctrl-Z: erase the block and stop as by default. `fg` resumes here."""
        self._erase()
        self._wanted = ()
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)


def lines(block: BlockContent, width: int) -> tuple[bytes, ...]:
    """Return at most three lines, each narrower than the terminal, so that none wraps."""
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
    console = rich_console.Console(width=BAR_CELLS, color_system="standard", force_terminal=True, legacy_windows=False)
    bar = ProgressBar(total=1.0, completed=done, width=BAR_CELLS, complete_style="green", finished_style="green")
    drawn = [segment for segment in console.render(bar) if segment.text != "\n"]
    return [Segment("  "), *drawn, Segment(f" {100 * done:.0f} %")]


def _line(row: list[Segment], room: int) -> bytes:
    """Return one line, truncated to `room` columns."""
    out, used = [], 0
    for segment in row:
        text = sanitize_line(segment.text) if segment.text.strip() else segment.text
        text = segment.text if text == segment.text.rstrip() else text  # Keep trailing blanks.
        if used + cell_len(text) > room:
            text = set_cell_size(text, max(room - used - 1, 0)) + "…"
        used += cell_len(text)
        out.append(segment.style.render(text, color_system=ColorSystem.STANDARD) if segment.style else text)
        if used >= room:
            break
    return "".join(out).encode(errors="replace")
