"""Temporary folders, of an embedded etcd and of an agent, and the ones that killed processes left behind.

Whoever uses a folder holds a lock on a file in it, which the kernel lets go of with the process. A folder whose lock
is free belongs to nobody and is removed by the next start.
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
"""How the names of folders begin, by what they are for."""
LOCK = "lock"
UNLOCKED_LIMIT_S = 24 * 3600.0
"""A folder without a lock file may be about to get one; nothing in it was written for so long, so it will not."""


class TempFolder:
    """A fresh folder of ours. It is gone after `remove`, or after the next start once this process is dead."""

    def __init__(self, prefix: str) -> None:
        """Make the folder in the system's temporary folder. Raises `ConfigError` if that cannot be done."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            unnamed = self.path / f"{LOCK}.new"
            self._fd = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            unnamed.rename(self.path / LOCK)  # Under its name it is locked from the first moment.
        except OSError as error:
            raise ConfigError(
                f"a temporary folder cannot be made in {tempfile.gettempdir()} ({error.strerror}); "
                "mend that, or set TMPDIR to another folder"
            ) from error

    def remove(self) -> None:
        """Delete the folder, as far as it can be deleted."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._fd)


def remove_left_behind(prefix: str) -> None:
    """Delete the folders of this user that nobody uses any more, as far as they can be deleted."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            info = path.lstat()
        except OSError:  # It was removed in this moment.
            continue
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            continue
        try:
            fd = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if time.time() - _written_at_s(path) > UNLOCKED_LIMIT_S:
                shutil.rmtree(path, ignore_errors=True)
            continue
        except OSError:  # Not ours to judge.
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # Somebody uses it, or this filesystem has no locks.
        finally:
            os.close(fd)


def _written_at_s(folder: Path) -> float:
    """When something below was written last; the unknown is taken as now, so that it stays."""
    try:
        return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except OSError:
        return time.time()
