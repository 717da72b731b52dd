"""Lines of other programs made fit to be shown: without control characters, cut to a length (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

TAIL_LINES = 20


LINE_CHARACTERS = 500
"""A longer line of a tail is cut. Twenty lines of eight workers stay far below what a store's document may hold."""


def tail_lines(ending: OutputTail, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """The last lines of the end of what a worker said, fit for any screen; () if it said nothing.

    Bytes that are no text are replaced, control characters and colours taken out, of a line that was drawn over with
    carriage returns the last state is kept, our own frame left out.
    """
    found = [sanitize_line(line) for line in ending.data.decode(errors="replace").split("\n")]
    if ending.cut and any(map(_worth, found[1:])):
        del found[0]  # It is likely a part of a line. A part is better than nothing.
    return tuple([line for line in found if _worth(line)][-lines:])


def _worth(line: str) -> bool:
    return bool(line) and not _FRAME.fullmatch(line)


def sanitize_line(line: str) -> str:
    """One line without anything that a terminal would obey, not longer than `LINE_CHARACTERS`."""
    if line.isprintable():  # Nearly all are: the end of a log is read while others wait for this node.
        text = line.rstrip()
    else:
        last = line.rstrip("\r").rpartition("\r")[2]
        plain = _ESCAPES.sub("", last)
        if not plain.replace("\t", "").isprintable():
            plain = "".join(sign if sign.isprintable() or sign == "\t" else " " * sign.isspace() for sign in plain)
        text = plain.expandtabs(4).rstrip()
    return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 1]}…"


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


_FRAME = re.compile(r"==== .* ====")


class OutputTail(NamedTuple):
    """The end of what a start has said so far; `cut`: it said more before."""

    data: bytes = b""
    cut: bool = False
