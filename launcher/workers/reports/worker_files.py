"""What torch's `@record` wrote of the exception that ended a worker (TORCHELASTIC_ERROR_FILE).

The file is the worker's: whatever stands there, and whatever kind of file it is, reading it costs a moment and never
fails.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import msgspec

from elastic._decode import UNREADABLE
from launcher.system import descriptors
from launcher.text.sanitize import sanitize_line

BYTES_MAX = 1 << 20
LINES_MAX = 2000


def traceback_lines(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """The traceback, fit for any screen, its message at the end; () if there is none or it is not understood."""
    return parse_traceback_lines(_bytes(Path(path)))


def parse_traceback_lines(data: bytes) -> tuple[str, ...]:
    """The same of the file's content."""
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


def _bytes(path: Path) -> bytes:
    """The content of a plain file that is not too large, otherwise nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return b""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > BYTES_MAX:
            return b""
        return os.read(fd, BYTES_MAX + 1)
    except OSError:
        return b""
    finally:
        descriptors.close(fd)
