"""A file that several agents append to, and that is renamed when it is full, so that both together have a bound."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path


class Rotated:
    """Lines for `path`; once it is longer than `bytes_max` it becomes `full`, and the next begins.

    The file is opened for each line, because another agent of the folder may have renamed it. All of it raises
    `OSError`.
    """

    def __init__(self, path: Path, full: Path, bytes_max: int) -> None:
        """Nothing is opened yet."""
        self.path, self._full, self._bytes_max = path, full, bytes_max

    def append(self, line: bytes) -> bool:
        """Write a line; False if the file was full and could not be locked, so that lines may be lost."""
        locked = True
        fd = self._open()
        try:
            if os.fstat(fd).st_size > self._bytes_max:
                locked = self._set_aside(fd)
                os.close(fd)
                fd = self._open()
            os.write(fd, line)
        finally:
            os.close(fd)
        return locked

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def _set_aside(self, fd: int) -> bool:
        """Rename the full file, unless another agent is about to, or has just done it."""
        locked = True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            locked = False
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(self.path)):
                os.replace(self.path, self._full)
        return locked
