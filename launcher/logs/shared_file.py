"""A file of lines that the agents of a folder share, and that has a bound.

When it is too long it becomes `<stem>.1<suffix>`, in place of what stood there before, so that both together have a
bound. Each line is appended with one write of a file that is opened for it: another agent may have renamed the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

BYTES_MAX = 8 << 20
"""Of the file; there are two of them at most."""
LOCKED_BYTES_MAX = BYTES_MAX + (1 << 20)
"""Of one that another process keeps locked, as every user can who may read it: it is renamed all the same."""


class SharedLog:
    """Appends lines."""

    def __init__(self, path: Path) -> None:
        """Nothing is written yet."""
        self.path = path
        self.full = path.with_name(f"{path.stem}.1{path.suffix}")
        self._torn = b""

    def append(self, line: bytes) -> None:
        """Append one line, with its end.

        Raises `OSError`; the file is then as it was, or has a part of the line, which the next one ends. A disk that
        tells only when the file is closed that it has no room may have lost all of it.
        """
        with contextlib.ExitStack() as opened:  # Whatever one of them raises when it is closed, all are closed.
            fd = self._open(opened)
            if os.fstat(fd).st_size > BYTES_MAX and self._set_aside(fd):
                fd = self._open(opened)
            rest = self._torn + line
            while rest:
                wrote = os.write(fd, rest)  # All of it, but on a disk that gets full meanwhile.
                rest = rest[wrote:]
                self._torn = b"\n" if rest else b""

    def _open(self, opened: contextlib.ExitStack) -> int:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        opened.callback(os.close, fd)
        return fd

    def _set_aside(self, fd: int) -> bool:
        """Rename the full file, unless another agent is about to; whether it is renamed, by whomever.

        Where it cannot be locked (some network disks) agents that do it in the same moment lose older lines.
        """
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if os.fstat(fd).st_size <= LOCKED_BYTES_MAX:
                    return False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(self.path)):
                os.replace(self.path, self.full)
        return True
