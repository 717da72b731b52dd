"""Makes lines of other programs safe to display: without control characters, truncated to a length (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

TAIL_LINES = 20


LINE_CHARACTERS = 500
"""Longer lines of a tail are truncated. Twenty lines of eight workers stay far below the limit of an etcd value."""


def tail_lines(ending: OutputTail, lines: int = TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines of a worker's output, safe for any terminal; () if it wrote nothing.

    Bytes that are not text are replaced, control characters and colours removed. Of a line that carriage returns
    overwrite, the last state is kept. Lines that the launcher wrote are left out.
    """
    found = [sanitize_line(line) for line in ending.data.decode(errors="replace").split("\n")]
    if ending.cut and any(map(_worth, found[1:])):
        del found[0]  # It is probably a part of a line.
    return tuple([line for line in found if _worth(line)][-lines:])


def _worth(line: str) -> bool:
    return bool(line) and not _FRAME.fullmatch(line)


def sanitize_line(line: str) -> str:
    """Return a line without anything that a terminal would interpret, truncated to `LINE_CHARACTERS`."""
    if line.isprintable():  # Fast path: other nodes wait while this node reads the end of a log.
        text = line.rstrip()
    else:
        last = line.rstrip("\r").rpartition("\r")[2]
        plain = _ESCAPES.sub("", last)
        if not plain.replace("\t", "").isprintable():
            plain = "".join(char if char.isprintable() or char == "\t" else " " * char.isspace() for char in plain)
        text = plain.expandtabs(4).rstrip()
    return text if len(text) <= LINE_CHARACTERS else f"{text[: LINE_CHARACTERS - 1]}…"


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


_FRAME = re.compile(r"==== .* ====")


class OutputTail(NamedTuple):
    """The end of the output of a start so far; `cut`: there was more before."""

    data: bytes = b""
    cut: bool = False
