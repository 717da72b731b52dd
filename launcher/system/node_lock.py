"""Proves that no process of a node is left on this host: a lock that the fork server and its workers hold.

The fork server takes an exclusive lock on a file and leaves the descriptor open in every worker. The kernel releases it
when the last of them has exited, for any reason. So a free lock proves that neither the fork server nor a worker of
that node is left. A missing file, or one that another boot or host wrote, proves nothing.

The file stays when the agent was killed, because then the proof is needed. It is removed only when the fork server ends
normally with no process left; the outcome is then recorded in the store. Standard library only.

The files are in a directory of this user. A process always uses the directory that it chose first: a node with its lock
in two places would look dead in the one that it left. If two processes chose different directories, a proof is only
delayed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from elastic.errors import ConfigError
from launcher.system.descriptors import closing, is_file_at

HOLD_LIMIT_S = 2.0
"""How long `hold` waits for a lock that another process still holds (a worker of a killed fork server that exits)."""

HOLD_RETRY_S = 0.02
KEEP_S = 7 * 86400.0
FREE_MAX = 100
"""A new lock file removes free ones that are older than this, and all but this number of the newest."""

FIX = "remove it, or set TMPDIR to a directory that only you can write"

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class NodeLock(NamedTuple):
    """A lock that is held while `fd` is open in any process."""

    path: Path
    fd: int

    def remove(self) -> None:
        """Delete the file, which then proves nothing. The lock itself lasts until the descriptor is closed."""
        self.path.unlink(missing_ok=True)


class LockLocation(NamedTuple):
    """A possible place of locks: the directory `name` in `base`. If `private`, only this user may write to `base`."""

    base: str
    name: str
    private: bool = False

    @property
    def path(self) -> Path:
        """The directory."""
        return Path(self.base, self.name)


class ChosenLockFolder(NamedTuple):
    """The directory for locks, and a warning, "" if it is the usual one."""

    path: Path
    note: str


def choose_lock_folder() -> ChosenLockFolder:
    """Choose the directory for this user's locks. Raises `ConfigError` if every place is blocked."""
    return _choose(places())


def folder() -> Path:
    """Return the directory of `choose_lock_folder`; create it again with mode 0700 if it was removed.

    Raises `ConfigError` if another user can write there now: a file of another user must not prove a death.
    """
    path = choose_lock_folder().path
    if why := _blocked(path):
        raise ConfigError(f"{why}; {FIX}")
    return path


def places() -> tuple[LockLocation, ...]:
    """Return the possible places of locks, the usual place first.

    Another user can block the directory in /tmp or /dev/shm by creating it first, but neither the runtime directory of
    a login nor the home directory. The home directory comes last: it may be on a network disk that hangs.
    """
    own = f"elastic-launch-{os.getuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (
        LockLocation(tempfile.gettempdir(), own),
        *([LockLocation(runtime, "elastic-launch", private=True)] if os.path.isabs(runtime) else []),
        LockLocation("/dev/shm", own),
        LockLocation(os.path.expanduser("~"), ".cache/elastic-launch", private=True),
    )


@functools.cache
def _choose(among: tuple[LockLocation, ...]) -> ChosenLockFolder:
    reasons: list[str] = []
    for place in among:
        if not (why := _unfit(place)):
            return ChosenLockFolder(
                place.path, f"{reasons[0]}; the locks of nodes are in {place.path}" if reasons else ""
            )
        reasons.append(why)
    raise ConfigError(f"{'; '.join(reasons)}; {FIX}")


def _unfit(place: LockLocation) -> str:
    """Return why a place cannot have locks, "" if it can."""
    try:
        if place.private and not _only_ours(os.stat(place.base)):
            return f"{place.base} is not a directory that only you can write"
        if why := _blocked(place.path):
            return why
        with tempfile.TemporaryFile(dir=place.path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return f"{place.path} cannot be used ({error.strerror})"
    return ""


def _blocked(path: Path) -> str:
    """Create the directory if it is missing; return why it cannot have locks, "" if it can."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        ours = _only_ours(path.lstat())
    except OSError as error:
        return f"{path} cannot be created ({error.strerror})"
    return "" if ours else f"{path} is not a directory that only you can write"


def _only_ours(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def lock_path(job_id: str, node_id: str, base: Path | None = None) -> Path:
    """Return the path of a node's lock."""
    name = f"{job_id}.{node_id}.lock".replace(os.sep, "_")
    return (folder() if base is None else base) / name


def held(job_id: str, base: Path | None = None) -> tuple[str, ...]:
    """Return the nodes of a job that have processes on this host, sorted by name."""
    found = []
    for path in (folder() if base is None else base).glob(f"{job_id}.*.lock"):
        with contextlib.suppress(OSError), closing(_open(path)) as fd:  # The file is gone, or the disk has no locks.
            if not _locked(fd):
                found.append(path.name[len(job_id) + 1 : -len(".lock")])
    return tuple(sorted(found))


def hold(path: Path) -> NodeLock:
    """Take the lock; executed processes inherit the descriptor.

    Raises `BlockingIOError` if another process holds it for longer than `HOLD_LIMIT_S`.
    """
    until_s = time.monotonic() + HOLD_LIMIT_S
    while True:
        fd = _take(path)
        if fd is not None:
            os.set_inheritable(fd, True)
            _prune(path.parent, keep=path)
            return NodeLock(path, fd)
        if time.monotonic() >= until_s:
            raise BlockingIOError(errno.EAGAIN, "another process holds the lock of this node", str(path))
        time.sleep(HOLD_RETRY_S)


def proven_dead(path: Path) -> bool:
    """Return True only if the file exists, this boot of this host wrote it, and no process holds its lock."""
    try:
        with closing(_open(path)) as fd:
            return os.read(fd, 256) == _boot() and _locked(fd)
    except OSError:
        return False  # Missing or unreadable, or the disk has no locks: no proof.


def _open(path: Path) -> int:
    """Open the file of a lock for reading."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _take(path: Path) -> int | None:
    """Return the locked descriptor, or None if another process holds the lock or removed the file meanwhile.

    A new file is empty, and therefore proves nothing, until its lock is held.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if _locked(fd, fcntl.LOCK_EX) and is_file_at(fd, path):
        os.ftruncate(fd, 0)
        os.pwrite(fd, _boot(), 0)
        return fd
    os.close(fd)
    return None


def _locked(fd: int, lock: int = fcntl.LOCK_SH) -> bool:
    """Take the lock; False if another process has it. A shared lock lets two processes check at the same time."""
    try:
        fcntl.flock(fd, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _boot() -> bytes:
    return BOOT_ID.read_bytes()


def _prune(base: Path, keep: Path) -> None:
    """Remove old free locks, and the oldest of too many. Files that cannot be removed are harmless."""
    locks = []
    for path in base.glob("*.lock"):
        with contextlib.suppress(OSError):
            locks.append((path.stat().st_mtime, path))
    newest = {path for _, path in sorted(locks)[-FREE_MAX:]}
    for at_s, path in locks:
        with contextlib.suppress(OSError):
            old = time.time() - at_s > KEEP_S or path not in newest
            if path != keep and old and proven_dead(path):
                path.unlink()
