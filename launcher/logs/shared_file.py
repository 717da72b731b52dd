"""A bounded file of lines that the agents of a directory share.

When it is too long it is renamed to `<stem>.1<suffix>`, and replaces the previous file of that name, so that both
together are bounded. Each line is appended with one write of a file that is opened for it: another agent may have
renamed the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

BYTES_MAX = 8 << 20
"""The largest size of a file; there are at most two files."""
LOCKED_BYTES_MAX = BYTES_MAX + (1 << 20)
"""A file of this size is renamed even if another process keeps it locked, as every user who can read it can."""


class SharedLog:
    """A file to which the agents of a host append lines."""

    def __init__(self, path: Path) -> None:
        """`path` is opened at the first line."""
        self.path = path
        self.full = path.with_name(f"{path.stem}.1{path.suffix}")
        self._torn = b""

    def append(self, line: bytes) -> None:
        """Append one line, with its end.

        Raises `OSError`; the file is then unchanged, or has a part of the line, which the next one ends. A disk that
        reports only when the file is closed that it is full may have lost all of it.
        """
        with contextlib.ExitStack() as opened:  # If closing one of them raises, the others are closed too.
            fd = self._open(opened)
            if os.fstat(fd).st_size > BYTES_MAX and self._set_aside(fd):
                fd = self._open(opened)
            rest = self._torn + line
            while rest:
                wrote = os.write(fd, rest)  # All of it, unless the disk becomes full meanwhile.
                rest = rest[wrote:]
                self._torn = b"\n" if rest else b""

    def _open(self, opened: contextlib.ExitStack) -> int:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        opened.callback(os.close, fd)
        return fd

    def _set_aside(self, fd: int) -> bool:
        """Rename the full file, unless another agent is about to; returns whether any agent has renamed it.

        If it cannot be locked (some network disks), agents that rename it at the same time lose older lines.
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
