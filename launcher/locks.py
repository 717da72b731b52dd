"""Proof that nothing of a node runs any more on this machine: a lock that the nursery and its workers hold.

The nursery takes an exclusive lock on a file and leaves the descriptor open in every worker. The kernel frees it when
the last of them is gone, whatever killed them. So a lock that is free proves that neither the nursery nor a worker
of that node is left. A file that is missing, or that another boot or machine wrote, proves nothing.

The file stays when the agent was killed, because then the proof is wanted. It is removed only when the nursery ends in
order with nothing left running; what happened is then recorded in the store. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from elastic.errors import ConfigError

HOLD_LIMIT_S = 2.0
"""How long `hold` waits for a lock that somebody still holds (a worker of a killed nursery that is just ending)."""

HOLD_RETRY_S = 0.02
KEEP_S = 7 * 86400.0
FREE_MAX = 100
"""Free lock files older than this, and all but so many of the newest, are removed when a new one is made."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Lock(NamedTuple):
    """A lock that is held for as long as `fd` is open in any process."""

    path: Path
    fd: int

    def remove(self) -> None:
        """Delete the file: from now on it proves nothing. The lock itself lasts until the descriptor is closed."""
        self.path.unlink(missing_ok=True)


def folder() -> Path:
    """The folder for this user's locks; made with mode 0700.

    Raises `ConfigError` when somebody else made it first or can write there: a foreign file must not prove a death.
    """
    path = Path(tempfile.gettempdir()) / f"elastic-launch-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be made ({error.strerror}); set TMPDIR to a folder you can write") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{path} is not a folder that only you can write; remove it or set TMPDIR to another folder")
    return path


def lock_path(job_id: str, node_id: str, base: Path | None = None) -> Path:
    """Where the lock of a node lies."""
    name = f"{job_id}.{node_id}.lock".replace(os.sep, "_")
    return (folder() if base is None else base) / name


def held(job_id: str, base: Path | None = None) -> tuple[str, ...]:
    """The nodes of a job of which something runs on this machine, in the order of their names."""
    found = []
    for path in (folder() if base is None else base).glob(f"{job_id}.*.lock"):
        with contextlib.suppress(OSError), _opened(path) as fd:  # It is gone, or nothing can be locked there.
            if not _free(fd):
                found.append(path.name[len(job_id) + 1 : -len(".lock")])
    return tuple(sorted(found))


def hold(path: Path) -> Lock:
    """Take the lock; the descriptor is inherited by processes that are executed.

    The file is locked before it gets its name, so that nobody can see it free while its holder starts. Raises
    `BlockingIOError` when somebody holds it for longer than `HOLD_LIMIT_S`.
    """
    until_s = time.monotonic() + HOLD_LIMIT_S
    while True:
        fd = _take(path)
        if fd is not None:
            os.set_inheritable(fd, True)
            _prune(path.parent, keep=path)
            return Lock(path, fd)
        if time.monotonic() >= until_s:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock of this node", str(path))
        time.sleep(HOLD_RETRY_S)


def proven_dead(path: Path) -> bool:
    """True only if the file is there, this boot of this machine wrote it, and nobody holds its lock."""
    try:
        with _opened(path) as fd:
            return os.read(fd, 256) == _boot() and _free(fd)
    except OSError:
        return False  # Missing or unreadable, or nothing can be locked there: no proof.


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The file of a lock, to look at."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def _take(path: Path) -> int | None:
    """The locked descriptor, or None if somebody holds the lock or removed the file meanwhile."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return _make(path)
    if _lock(fd):
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                os.ftruncate(fd, 0)
                os.pwrite(fd, _boot(), 0)
                return fd
    os.close(fd)
    return None


def _make(path: Path) -> int | None:
    fd, unnamed = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    named = False
    try:
        os.write(fd, _boot())
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileExistsError):
            os.link(unnamed, path)
            named = True
    finally:
        os.unlink(unnamed)
        if not named:
            os.close(fd)
    return fd if named else None


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # Shared: two who ask at once do not block each other.
    except BlockingIOError:
        return False
    return True


def _boot() -> bytes:
    return BOOT_ID.read_bytes()


def _prune(base: Path, keep: Path) -> None:
    """Remove free locks of long ago, and the oldest of too many. What cannot be removed stays: it does no harm."""
    found = []
    for path in base.glob("*.lock"):
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime, path))
    newest = {path for _, path in sorted(found)[-FREE_MAX:]}
    for at_s, path in found:
        with contextlib.suppress(OSError):
            old = time.time() - at_s > KEEP_S or path not in newest
            if path != keep and old and proven_dead(path):
                path.unlink()
