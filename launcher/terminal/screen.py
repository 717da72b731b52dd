"""Keeps a block of lines below text that scrolls on one terminal (pure): bytes in, bytes out.

    epoch 3:  41%|####      | 41/100     ◄ the text; the cursor rests at its end, so that whoever writes there goes on
    ──────────────────────────────────
    j1 · generation 2 · 3 of 3 nodes     ◄ the block, drawn below and left again

Nothing of the text is changed: unfinished lines, lines that are drawn over with carriage returns, and several bars
that move the cursor up and down are as they would be without a block, which is taken away before text comes and drawn
again after it. The cursor is never hidden, and nothing but the block needs to be put right when an agent is killed.
"""

from __future__ import annotations

import re
from typing import Final

BELOW_MAX: Final = 20
"""So far above the last line of the text the cursor may rest."""
ESCAPE_MAX: Final = 64
"""Bytes of an escape sequence; a longer one is none."""

_SAVE, _BACK, _PLAIN = b"\x1b7", b"\x1b8", b"\x1b[0m"
_ROOM, _CLEAR_LINE, _CLEAR_BELOW = b"\x1bD", b"\x1b[K", b"\r\x1b[J"
WIPE: Final = _SAVE + _PLAIN + b"\x1b[J" + _BACK
"""Takes away a block that another process has left behind."""
_MOVES: Final = re.compile(rb"\n|\x1b\[(\d*)([ABEF])")
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*)?\Z")
_PART: Final = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z")


class TerminalScreen:
    """What stands on a terminal: text, and perhaps a block below."""

    def __init__(self) -> None:
        """No block."""
        self._drawn: tuple[bytes, ...] = ()
        self._below = 0
        """So many lines of the text are below the cursor."""
        self._tail = b""

    @property
    def inside(self) -> bool:
        """Whether the text ends within a sign or an order to the terminal: nothing may be drawn there."""
        part = _PART.search(self._tail)
        return bool(_BEGUN.search(self._tail)) or (part is not None and len(part[0]) < _signs_bytes(part[0][0]))

    def text(self, data: bytes) -> bytes:
        """Text comes: what to write. The block is taken away."""
        out = self.erase() + data
        self._follow(data)
        return out

    def draw(self, lines: tuple[bytes, ...]) -> bytes:
        """Have these lines below the text: what to write, b"" if they stand there or may not be drawn now."""
        if self.inside or lines == self._drawn:
            return b""
        if not lines:
            return self.erase()
        rows = self._below + len(lines)
        out = b"" if len(lines) == len(self._drawn) else self.erase() + _ROOM * rows + b"\x1b[%dA" % rows
        out += _SAVE + _PLAIN + b"\x1b[%dB" % (self._below + 1)
        out += b"\x1b[B".join(b"\r" + line + _PLAIN + _CLEAR_LINE for line in lines)
        self._drawn = lines
        return out + _BACK

    def erase(self) -> bytes:
        """Take the block away: what to write."""
        if not self._drawn:
            return b""
        self._drawn = ()
        return _SAVE + _PLAIN + b"\x1b[%dB" % (self._below + 1) + _CLEAR_BELOW + _BACK

    def wipe(self) -> bytes:
        """Take the block away though others have written or lines have moved: nothing before the cursor changes."""
        if not self._drawn:
            return b""
        self._drawn = ()
        return WIPE

    def forget(self) -> None:
        """What was to be written was not: nobody knows what stands there."""
        self._drawn, self._below, self._tail = (), 0, b""

    def _follow(self, data: bytes) -> None:
        """Follow the cursor's line."""
        self._tail = (self._tail + data[-ESCAPE_MAX:])[-ESCAPE_MAX:]
        if not self._below and b"\x1b[" not in data:
            return
        for move in _MOVES.finditer(data):
            count = int(move[1].lstrip(b"0")[:4] or 1) if move[2] else 1  # 0 is 1; four digits are beyond every bound.
            up = move[2] in (b"A", b"F")
            self._below = min(max(self._below + (count if up else -count), 0), BELOW_MAX)


def _signs_bytes(first: int) -> int:
    """Bytes of a sign of UTF-8 that begins so."""
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2
