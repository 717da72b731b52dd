"""Makes the output of workers safe for a user's terminal: it passes text and colours, and no other sequences.

    shown = TerminalFilter()
    pass_on(shown.feed(piece))      # for every piece, in order
    pass_on(shown.end())

A worker's output can come from a hostile node. Sequences that set the title or the clipboard, clear the screen, move
the cursor to earlier lines, change the character set or make the terminal answer are removed. The filter keeps text,
line ends, tabs, carriage returns, colours (SGR) and the erasing of the cursor's line (EL): progress bars need them.

pyte and the decoder of rich draw whole screens and lines, and the usual regular expressions (click's) know neither
string sequences nor C1 controls, and keep no state between pieces. Therefore this is a separate state machine (pure),
with one state for each kind of sequence of ECMA-48.
"""

from __future__ import annotations

import codecs
import re
from enum import Enum, auto
from typing import Final

CSI_MAX: Final = 64
"""Maximum characters of the parameters of a colour. The longest in use, two colours of 24 bits, has 38."""
STRING_MAX: Final = 1 << 16
"""Maximum characters of a title, a clipboard or an image. What follows counts as text: the sequence has no end."""
RAW_HELP: Final = "show it as it is; without this, terminal sequences other than colours are left out"
RESET: Final = b"\x1b[0m"

_ESCAPE: Final = "\x1b"
_PLAIN = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]*")
"""Text, line ends, tabs and carriage returns. Bytes that are not UTF-8 are surrogates here; some are C1 controls."""
_PARAMETERS = re.compile(r"[ -?]*")
_INSIDE = re.compile(r"[^\n\x07\x18\x1a\x1b\x9c\udc9c]*")
"""The content of a string sequence. A line end also ends it, so that a sequence without an end hides only one line."""
_KEPT = re.compile(rf"[0-9;:]{{0,{CSI_MAX}}}m|[0-2]?K")


class _ParserState(Enum):
    """What the next character is part of."""

    TEXT = auto()
    ESCAPE = auto()
    """A sequence that begins with ESC; its second character determines its kind."""
    SHORT = auto()
    """A sequence such as the choice of a character set: any number of intermediates, and one final character."""
    CSI = auto()
    STRING = auto()


_AFTER_ESCAPE = {"[": _ParserState.CSI, **dict.fromkeys("]PX^_", _ParserState.STRING)}
_BEGINS = {_ESCAPE: _ParserState.ESCAPE} | {
    chr(ord(letter) + more): state for letter, state in _AFTER_ESCAPE.items() for more in (0x40, 0xDC40)
}
"""A C1 control is one character for ESC and a letter."""


class TerminalFilter:
    """Filters one stream. The output does not depend on how the stream is divided into pieces."""

    def __init__(self) -> None:
        """Start in the state for text."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._state = _ParserState.TEXT
        self._parameters = ""
        self._left_out = 0
        self._coloured = False

    def feed(self, data: bytes) -> bytes:
        """Return the safe part of the next piece. An incomplete character or sequence waits for its rest."""
        return self._kept(self._decoder.decode(data))

    def end(self) -> bytes:
        """Return what still waits, and reset colours that are on. The next piece begins another stream."""
        rest = self._kept(self._decoder.decode(b"", final=True)) + (RESET if self._coloured else b"")
        self._decoder.reset()
        self._state, self._coloured = _ParserState.TEXT, False
        return rest

    def _kept(self, text: str) -> bytes:
        output: list[str] = []
        at = 0
        while at < len(text):
            match self._state:
                case _ParserState.TEXT:
                    at = self._text(text, at, output)
                case _ParserState.ESCAPE:
                    self._state = _AFTER_ESCAPE.get(text[at], _ParserState.SHORT)
                    at += self._state is not _ParserState.SHORT
                case _ParserState.SHORT:
                    at = self._short(text, at)
                case _ParserState.CSI:
                    at = self._csi(text, at, output)
                case _ParserState.STRING:
                    at = self._string(text, at)
        return "".join(output).encode("utf-8", "surrogateescape")

    def _text(self, text: str, at: int, output: list[str]) -> int:
        end = _end(_PLAIN, text, at)
        output.append(text[at:end])
        if end < len(text):  # A control character: it begins a sequence, or is removed.
            self._state = _BEGINS.get(text[end], _ParserState.TEXT)
            self._parameters, self._left_out = "", 0
        return end + 1

    def _short(self, text: str, at: int) -> int:
        if " " <= text[at] <= "/":
            return at + 1
        self._state = _ParserState.TEXT
        return at + ("0" <= text[at] <= "~")

    def _csi(self, text: str, at: int, output: list[str]) -> int:
        end = _end(_PARAMETERS, text, at)
        self._parameters = (self._parameters + text[at : min(end, at + CSI_MAX + 1)])[: CSI_MAX + 1]
        if end == len(text):
            return end
        self._state = _ParserState.TEXT
        if not "@" <= text[end] <= "~":  # Broken off.
            return end
        if _KEPT.fullmatch(sequence := self._parameters + text[end]):
            output.append(f"{_ESCAPE}[{sequence}")
            self._coloured = sequence not in ("m", "0m") if sequence[-1] == "m" else self._coloured
        return end + 1

    def _string(self, text: str, at: int) -> int:
        end = min(_end(_INSIDE, text, at), at + STRING_MAX - self._left_out)
        self._left_out += end - at
        if self._left_out == STRING_MAX:
            self._state = _ParserState.TEXT
        elif end < len(text):
            self._state = _ParserState.TEXT
            return end + (text[end] not in f"\n{_ESCAPE}")
        return end


def filter_stream(data: bytes) -> bytes:
    """Filter a whole stream with `TerminalFilter`."""
    shown = TerminalFilter()
    return shown.feed(data) + shown.end()


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None  # Each of them also matches "".
    return found.end()
