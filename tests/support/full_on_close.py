"""A disk that says only when a file is closed that it has no room for it, as one with a quota behind NFS does."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

WORDS = os.strerror(errno.EDQUOT)


def refuses(part: str) -> Callable[[int], None]:
    """What `os.close` is where such a disk has the files with this part in their path: they are closed, with the error.

    No file system of a test's own does so, nor does a limit of a process.
    """
    really = os.close

    def close(fd: int) -> None:
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            path = ""
        really(fd)
        if part in path:
            raise OSError(errno.EDQUOT, WORDS)

    return close
