"""Keeps a block of lines below text that scrolls on one terminal (pure): bytes in, bytes out.

    epoch 3:  41%|####      | 41/100     ◄ the text; the cursor stays at its end, where the next output continues
    ──────────────────────────────────
    j1 · generation 2 · 3 of 3 nodes     ◄ the block, drawn below

The text does not change: unfinished lines, lines that carriage returns overwrite, and progress bars that move the
cursor up and down look as they would without a block. The block is erased before text arrives and redrawn after it. The
cursor is never hidden, and when an agent is killed only its block remains to be erased.
"""

from __future__ import annotations

import re
from typing import Final

BELOW_MAX: Final = 20
"""Maximum number of lines between the cursor and the last line of the text."""
ESCAPE_MAX: Final = 64
"""Maximum bytes of an escape sequence."""

_SAVE, _BACK, _PLAIN = b"\x1b7", b"\x1b8", b"\x1b[0m"
_ROOM, _CLEAR_LINE, _CLEAR_BELOW = b"\x1bD", b"\x1b[K", b"\r\x1b[J"
WIPE: Final = _SAVE + _PLAIN + b"\x1b[J" + _BACK
"""Erases a block that another process has left."""
_MOVES: Final = re.compile(rb"\n|\x1b\[(\d*)([ABEF])")
_BEGUN: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]*)?\Z")
_PART: Final = re.compile(rb"[\xc0-\xff][\x80-\xbf]{0,3}\Z")


class TerminalScreen:
    """The content of a terminal: text, and optionally a block below it."""

    def __init__(self) -> None:
        """Start without a block."""
        self._drawn: tuple[bytes, ...] = ()
        self._below = 0
        """Lines of the text below the cursor."""
        self._tail = b""

    @property
    def inside(self) -> bool:
        """Whether the text ends within a character or an escape sequence, so that nothing may be drawn there."""
        part = _PART.search(self._tail)
        return bool(_BEGUN.search(self._tail)) or (part is not None and len(part[0]) < _character_bytes(part[0][0]))

    def text(self, data: bytes) -> bytes:
        """Return what to write for new text; that erases the block."""
        out = self.erase() + data
        self._follow(data)
        return out

    def draw(self, lines: tuple[bytes, ...]) -> bytes:
        """Return what to write to show these lines below the text; b"" if they are shown or may not be drawn now."""
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
        """Return what to write to erase the block."""
        if not self._drawn:
            return b""
        self._drawn = ()
        return _SAVE + _PLAIN + b"\x1b[%dB" % (self._below + 1) + _CLEAR_BELOW + _BACK

    def wipe(self) -> bytes:
        """Erase the block even if other processes have written or lines have moved; keep all before the cursor."""
        if not self._drawn:
            return b""
        self._drawn = ()
        return WIPE

    def forget(self) -> None:
        """Note that the last output was not written, so the content of the terminal is unknown."""
        self._drawn, self._below, self._tail = (), 0, b""

    def _follow(self, data: bytes) -> None:
        """Track the line of the cursor."""
        self._tail = (self._tail + data[-ESCAPE_MAX:])[-ESCAPE_MAX:]
        if not self._below and b"\x1b[" not in data:
            return
        for move in _MOVES.finditer(data):
            count = int(move[1].lstrip(b"0")[:4] or 1) if move[2] else 1  # 0 is 1; four digits are beyond every bound.
            up = move[2] in (b"A", b"F")
            self._below = min(max(self._below + (count if up else -count), 0), BELOW_MAX)


def _character_bytes(first: int) -> int:
    """Return the length of a UTF-8 character with this first byte."""
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2
