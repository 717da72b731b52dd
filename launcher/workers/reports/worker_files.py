"""The files that a worker leaves for its agent: its step, and the exception that ended it.

    ELASTIC_PROGRESS_FILE      a script without our library writes its step there
    TORCHELASTIC_ERROR_FILE    torch's `@record` writes the exception there

The files are the worker's: whatever their content, and whatever kind of file they are, reading them is quick and never
fails.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Any

import msgspec

from elastic._decode import UNREADABLE
from launcher.system import descriptors
from launcher.text.sanitize import sanitize_line

STEP_BYTES_MAX = 64
STEP_MAX = 2**62
"""The largest step, as in the documents in etcd; no training reaches it."""
ERROR_BYTES_MAX = 1 << 20
LINES_MAX = 2000


def read_step(path: str | os.PathLike[str]) -> int:
    """Return the step, -1 if the file has no valid one."""
    try:
        step = int(_beginning(path, STEP_BYTES_MAX))
    except ValueError:
        return -1
    return step if -1 <= step <= STEP_MAX else -1


def traceback_lines(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the lines of the traceback, safe for any terminal, the message last; () if it is missing or invalid."""
    data = _beginning(path, ERROR_BYTES_MAX + 1, os.O_NOFOLLOW)
    return parse_traceback_lines(data) if len(data) <= ERROR_BYTES_MAX else ()


def parse_traceback_lines(data: bytes) -> tuple[str, ...]:
    """Return the same of the file's content."""
    try:
        document = msgspec.json.decode(data)
    except UNREADABLE:
        return ()
    message = _of(document, "message")
    stack = _of(_of(message, "extraInfo"), "py_callstack")
    text = message if isinstance(message, str) else _of(message, "message")
    stack_lines = _lines(stack)
    words = _lines(text)
    if not words or words[0] in stack_lines:
        return stack_lines
    return (*stack_lines, *words)


def _lines(text: Any) -> tuple[str, ...]:
    if not isinstance(text, str):
        return ()
    return tuple(line for part in text.split("\n")[-LINES_MAX:] if (line := sanitize_line(part)))


def _of(document: Any, key: str) -> Any:
    return document.get(key) if isinstance(document, dict) else None


def _beginning(path: str | os.PathLike[str], most: int, flags: int = 0) -> bytes:
    """Return the first `most` bytes of a regular file, nothing of any other."""
    flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    with suppress(OSError, ValueError), descriptors.closing(os.open(path, flags)) as fd:
        return os.read(fd, most) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    return b""
