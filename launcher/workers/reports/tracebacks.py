"""The uncaught exception in a worker's output, and the few lines of it that a user needs (pure).

Python writes a traceback and then takes a while to exit: output of other threads, of libraries that shut down and of
the script itself may follow it, even hundreds of lines. So the exception is searched for, not only the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

PART_MAX = 12
"""Lines of an exception that are shown where the end of the log does not have it."""
MORE_MAX = 4
"""Further lines of its message that are shown, if they are indented."""
MIXED_MAX = 30
"""For this many further lines a usual exception name is preferred to an unusual one."""
LEFT_OUT = "[...]"

_NOISE = re.compile(r"^(?:\[rank\d+\]:)?\s*(?:\[W\d|frame #\d|Exception raised from )")
"""Warnings (a client that retries and succeeds warns too) and the C++ frames after an error."""
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_HEADER = re.compile(r"^(?P<group>\s*\+ Exception Group )?\s*(?:Original )?Traceback \(most recent call last\):$")
_EXCEPTION = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::\s.*)?$")
_USUAL = ("Error", "Exception", "Interrupt", "Exit", "Iteration", "Group", "Warning", "Missing", "Lost")
"""The usual endings of the names of exceptions."""
_OF_GROUP = re.compile(r"^\s*[|+]")
_IN_GROUP = re.compile(r"^\s*(?:\|\s)*\| (?=\S)")
"""One space after the last bar: an exception, or the text above it; frames have more."""
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|TabError): ")
_FILE = re.compile(r'^\s+File ".*", line \d+')
_SYNTAX_LINES = 4
_HARMLESS = re.compile(r"^(?:Exception ignored (?:in|on)|Exception in thread|Error in atexit|Process \S+:$)")
"""The line above the traceback of an exception that does not end the process."""


@dataclass(frozen=True, slots=True)
class TracebackSpan:
    """A traceback: lines `first` to `last` of the text, the exception itself at `line`."""

    first: int
    line: int
    last: int
    fatal: bool
    group: bool = False


def without_noise(lines: Sequence[str]) -> list[str]:
    """Return the lines without warnings of torch's C++ parts, and without C++ frames."""
    return [line for line in lines if not _NOISE.match(line)]


def excerpt(lines: Sequence[str], room: int) -> tuple[str, ...]:
    """Return the last `room` lines, without noise; they include the exception wherever it is in the text.

    `lines` has no empty ones.
    """
    shown = without_noise(lines) or list(lines)
    exception = uncaught(shown)
    start = len(shown) - room
    if exception is None or start <= exception.line:
        return tuple(shown[max(start, 0) :])
    part = _part(shown, exception)
    left = room - len(part)
    rest = shown[max(exception.last + 1, len(shown) - left) :]
    if len(rest) == left and exception.last + 1 < len(shown) - left:
        rest = [LEFT_OUT, *rest[1:]]
    return (*part, *rest)


def uncaught(lines: Sequence[str]) -> TracebackSpan | None:
    """Return the last traceback that may have ended the process; one of a thread, if there is no other."""
    plain = [_RANK_PREFIX.sub("", line) for line in lines]
    found = [one for at in range(len(plain)) if (one := _at(plain, at)) is not None]
    fatal = [one for one in found if one.fatal]
    return fatal[-1] if fatal else found[-1] if found else None


def uncaught_lines(lines: Sequence[str]) -> list[str]:
    """Return the line with the exception that ended the process and all after it; [] for none and for a group."""
    shown = [_RANK_PREFIX.sub("", line) for line in without_noise(lines)]
    exception = uncaught(shown)
    return shown[exception.line :] if exception is not None and exception.fatal and not exception.group else []


def _at(lines: Sequence[str], at: int) -> TracebackSpan | None:
    """Return the traceback that begins at a line, None if none does or its exception is missing."""
    header = _HEADER.match(lines[at])
    if header is None:
        return _syntax_error(lines, at)
    fatal = not (at and _HARMLESS.match(lines[at - 1]))
    if header["group"]:
        return _group(lines, at, fatal)
    line = _exception(lines, at)
    return TracebackSpan(at, line, _message_end(lines, line), fatal) if line is not None else None


def _exception(lines: Sequence[str], header: int) -> int | None:
    """Return the line that names the exception. Other threads may have written between the frames and it."""
    first: int | None = None
    for number in range(header + 1, len(lines)):
        line = lines[number]
        if _HEADER.match(line) or (first is not None and number - first > MIXED_MAX):
            break
        if line.startswith((" ", "\t")):
            continue
        if (match := _EXCEPTION.match(line)) is not None:
            if match["name"].endswith(_USUAL):
                return number
            first = number if first is None else first
    return first


def _group(lines: Sequence[str], at: int, fatal: bool) -> TracebackSpan | None:
    last = at
    while last + 1 < len(lines) and _OF_GROUP.match(lines[last + 1]):
        last += 1
    line = next((number for number in range(at + 1, last + 1) if _IN_GROUP.match(lines[number])), None)
    return TracebackSpan(at, line, last, fatal, group=True) if line is not None else None


def _syntax_error(lines: Sequence[str], at: int) -> TracebackSpan | None:
    """Return the error of a script that Python could not parse: it has no header."""
    if not _SYNTAX.match(lines[at]):
        return None
    above = range(at - 1, max(at - 1 - _SYNTAX_LINES, -1), -1)
    first = next((number for number in above if _FILE.match(lines[number])), None)
    return TracebackSpan(first, at, at, True) if first is not None else None


def _message_end(lines: Sequence[str], line: int) -> int:
    last = line
    while (
        last + 1 < len(lines)
        and last - line < MORE_MAX
        and lines[last + 1].startswith((" ", "\t"))
        and not _FILE.match(lines[last + 1])
    ):
        last += 1
    return last


def _part(lines: Sequence[str], found: TracebackSpan) -> list[str]:
    """Return the last lines of a traceback with its exception; of a group as many exceptions as there is room for."""
    if not found.group or found.last - found.first < PART_MAX:
        return list(lines[max(found.first, found.last - PART_MAX + 1) : found.last + 1])
    kept = [line for line in lines[found.line : found.last + 1] if _IN_GROUP.match(_RANK_PREFIX.sub("", line))]
    kept = [line for line in kept if "Traceback (most recent call last):" not in line]
    return kept if len(kept) <= PART_MAX else [*kept[: PART_MAX - 1], LEFT_OUT]
