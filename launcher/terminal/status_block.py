"""The live status of a node on a terminal: drawn below what scrolls, taken away before anything else is to be there.

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
"""The status is looked at so often."""
BETWEEN_S: Final = 0.03
"""After text it is drawn again at once, but not more often than this: else when text has come for the last time."""
PATIENCE_S: Final = 1.0
"""So long a text may end within a sign before something is drawn behind it."""
ROWS_LEFT: Final = 4
"""Lines that are left for the text; on a smaller terminal there is no block."""
NARROW: Final = 20
"""On a terminal of fewer columns there is no block."""
BAR_CELLS: Final = 24


class StatusBlock:
    """Between a console and its terminal."""

    def __init__(self, console: Console, terminal: int, look: Callable[[], BlockContent | None]) -> None:
        """Draw what `look` says, None: nothing. `terminal` is the descriptor that the console writes to."""
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
        """Leave the terminal as if there had never been a block."""
        self._timer.cancel()
        if self._soon is not None:
            self._soon.cancel()
        if self._stops:
            self._loop.remove_signal_handler(signal.SIGTSTP)
        self._erase()
        self._console.around = None

    # What the console asks.

    def text(self, data: bytes) -> bytes:
        """Bytes are to be shown: what to write instead."""
        now = self._text_at = time.monotonic()
        out = self._screen.text(data)
        if now - self._drawn_at >= BETWEEN_S:
            return out + self._draw(now)
        if self._soon is None:
            self._soon = self._loop.call_later(BETWEEN_S, self._draw_soon)
        return out

    def lost(self) -> None:
        """What was to be written was left out."""
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
        if self._console.waiting:  # The room is for the text.
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
        """Ctrl-Z: leave the terminal clean, and stop as if nobody had caught it. `fg` goes on here."""
        self._erase()
        self._wanted = ()
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        self._loop.add_signal_handler(signal.SIGTSTP, self._stop)


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
    console = rich_console.Console(width=BAR_CELLS, color_system="standard", force_terminal=True, legacy_windows=False)
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
