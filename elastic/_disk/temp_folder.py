"""Temporary directories of an embedded etcd and of an agent, and removal of those that killed processes left behind.

A process that uses a directory holds a lock on a file in it, which the kernel releases when the process ends. The next
start removes directories whose lock is free.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from elastic.errors import ConfigError

ETCD = "elastic-etcd-"
NODE = "elastic-node-"
"""Prefixes of the names of these directories, by purpose."""
LOCK = "lock"
UNLOCKED_LIMIT_S = 24 * 3600.0
"""A directory without a lock file may be about to get one, unless nothing was written in it for this time."""


class TempFolder:
    """A new temporary directory. `remove` deletes it, or the next start does once this process is dead."""

    def __init__(self, prefix: str) -> None:
        """Create the directory in the system's temporary directory. Raises `ConfigError` if this fails."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            unnamed = self.path / f"{LOCK}.new"
            self._fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            unnamed.rename(self.path / LOCK)  # Under its final name, the file is locked from the first moment.
        except OSError as error:
            raise ConfigError(
                f"cannot create a temporary directory in {tempfile.gettempdir()} ({error.strerror}); "
                "fix that, or set TMPDIR to another directory"
            ) from error

    def remove(self) -> None:
        """Delete the directory, as far as possible."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def remove_left_behind(prefix: str) -> None:
    """Delete this user's directories that no running process uses, as far as possible."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            info = path.lstat()
        except OSError:  # Another process has just removed it.
            continue
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            continue
        try:
            fd = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if time.time() - _written_at_s(path) > UNLOCKED_LIMIT_S:
                shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:  # It cannot be checked.
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # A process uses it, or this file system has no locks.
        finally:
            os.close(fd)


def _written_at_s(folder: Path) -> float:
    """Return the time of the last write below a directory; now if that is unknown, so that the directory is kept."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()
