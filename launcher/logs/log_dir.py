"""A log directory and its locks: every agent holds a shared lock, so that no other process deletes its live logs.

With `--log-overwrite` the logs of the directory are deleted, if no other agent writes there at this moment. Otherwise
they are appended to, and one line reports that: a node that joins a running job must not delete the others' logs.

The agents of one job share a directory, because each rank is in one place. Two jobs do not: both have a rank 0. The
second one writes into a separate directory below the first one's, and reports that.

Only this user can open the locks: `flock` needs no write permission, so every user who can read a lock file can lock
it. No agent waits for another process: without a lock it starts anyway, and one line reports that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from elastic.errors import ConfigError
from launcher.system import descriptors

LOCK = ".agents.lock"
JOB_LOCK = re.compile(r"\.agents\.(.+)\.lock")
BELOW_MAX = 8
"""Jobs that start in one directory at the same moment may all give way; after this many subdirectories it is shared."""
MODE = 0o600
LOCK_LIMIT_S = 2.0
"""How long to wait for a lock that another process holds exclusively. An agent holds it while it deletes old logs."""
LOCK_RETRY_S = 0.02
HELD = "another process holds it; fuser names that process"
FOREIGN = "it belongs to another user"
OURS = re.compile(
    r"(?:workerlog|serverlog|heterlog)\.\d+(?:\.\d+)?|envlog(?:\.[a-z]+)?\.\d+|endpoints(?:\.\d+)?\.log"
    r"|launcher(?:\.1)?\.log|events(?:\.1)?\.jsonl"
)
"""The files that elastic-launch writes. No other file in the directory is touched."""


class LogFolder(NamedTuple):
    """A directory that this process writes into. All but `path` are messages, "" if everything is as requested."""

    path: Path
    note: str
    moved: str
    unlocked: str


HoldLogFolder = Callable[[], contextlib.AbstractContextManager[LogFolder]]


@contextlib.contextmanager
def log_folder(path: Path, *, overwrite: bool = False, job: str = "", below: str = "") -> Iterator[LogFolder]:
    """Create the directory if needed, and hold its locks. Raises `ConfigError` if it is not writable.

    `job` names the job whose logs go there, "" for a process that writes none. While another job uses the directory,
    this process gets the directory `below` in it.
    """
    check_log_dir(path)
    with contextlib.ExitStack() as locks:
        note, unlocked = _share_folder(path, overwrite, locks)
        moved = not_claimed = ""
        if job:
            path, moved, not_claimed = _claim_exclusively(path, job, below, locks)
        yield LogFolder(path, note, moved, unlocked or not_claimed)


def _share_folder(path: Path, overwrite: bool, locks: contextlib.ExitStack) -> tuple[str, str]:
    """Share the lock of the directory; return a message about its logs, and one about a lock that cannot be taken."""
    lock = path / LOCK
    refused = f"--log-overwrite: cannot lock {lock}, so its logs are appended to" if overwrite else ""
    try:
        fd = locks.enter_context(descriptors.closing(_open(lock)))
    except PermissionError as error:
        return refused, _unlocked(lock, error)
    except OSError as error:
        raise ConfigError(
            f"cannot open {lock} ({error.strerror}); choose another --log-dir, or change the owner of this one"
        ) from error
    try:
        note = _delete_logs(fd, path) if overwrite else ""
        _share(fd, time.monotonic() + LOCK_LIMIT_S)
    except BlockingIOError as error:
        return refused, _unlocked(lock, error)
    except OSError as error:
        why = f"cannot lock {path} ({error.strerror})"
        note = f"--log-overwrite: {why}, so its logs are appended to" if overwrite else ""
    return note, ""


def _unlocked(lock: Path, error: OSError) -> str:
    why = FOREIGN if isinstance(error, PermissionError) else HELD
    return (
        f"cannot lock {lock} ({why}), so this agent starts without that lock; while it runs, start no other job "
        "with this --log-dir, and no agent with --log-overwrite"
    )


def _delete_logs(fd: int, path: Path) -> str:
    """Delete the logs, unless another agent writes there; return a message about that."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"--log-overwrite: another agent writes into {path}, so its logs are appended to"
    for file in path.iterdir():
        if OURS.fullmatch(file.name):
            try:
                file.unlink()
            except OSError as error:
                text = f"--log-overwrite cannot delete {file} ({error.strerror}); choose another --log-dir"
                raise ConfigError(text) from error
    return ""


def _claim_exclusively(path: Path, job: str, below: str, locks: contextlib.ExitStack) -> tuple[Path, str, str]:
    """Take the directory for a job, or the first one `below` that no other job has; return messages about that."""
    first = unlocked = ""
    try:
        for _ in range(BELOW_MAX):
            lock = path / f".agents.{job}.lock"
            with contextlib.ExitStack() as claim:
                claim.enter_context(_held(lock))
                other = _owner_job(path, job)
                if not other:
                    locks.push(claim.pop_all())
                    break
            first = first or other
            path /= below
            check_log_dir(path)
    except (PermissionError, BlockingIOError) as error:
        unlocked = _unlocked(lock, error)
    except OSError:
        pass  # Where nothing can be locked, jobs cannot be distinguished.
    return (
        path,
        f"{first}; this job writes to {path} (choose another directory with --log-dir)" if first else "",
        unlocked,
    )


def check_log_dir(path: Path) -> None:
    """Create the directory if needed and write a file in it. Raises `ConfigError` with what to change."""
    hint = "choose a writable directory with --log-dir"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError as error:
        raise ConfigError(f"--log-dir {path} is a file; {hint}") from error
    except OSError as error:
        raise ConfigError(f"cannot write --log-dir {path} ({error.strerror}); {hint}") from error


def _open(path: Path) -> int:
    """Open a lock file for this user alone; one that an older version created loses the permissions of others."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    with contextlib.suppress(OSError):  # Another user's: a group shares the directory.
        if os.fstat(fd).st_mode & 0o077:
            os.fchmod(fd, MODE)
    return fd


def _share(fd: int, until_s: float) -> None:
    """Take a shared lock. Raises `BlockingIOError` if another process holds it exclusively until then."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(LOCK_RETRY_S)
        else:
            return


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Hold a shared lock on a file that exists; the last holder removes the file.

    Raises `OSError` if it cannot be locked.
    """
    until_s = time.monotonic() + LOCK_LIMIT_S
    while True:
        with descriptors.closing(_open(path)) as fd:
            _share(fd, until_s)
            if not descriptors.is_file_at(fd, path):
                continue  # Another agent has just removed it.
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            return


def _owner_job(folder: Path, job: str) -> str:
    """Return which other job uses the directory, in words; "" if none does. Removes the locks of jobs that ended."""
    for path in folder.glob(".agents.*.lock"):
        match = JOB_LOCK.fullmatch(path.name)
        if match is None or match[1] == job:
            continue
        name = match[1].partition("@")[0]
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except PermissionError:  # Only that user can tell whether that job runs.
            return f"{folder} has the lock of a job ({name}) of another user"
        except OSError:
            continue
        with descriptors.closing(fd), contextlib.suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                return f"another job ({name}) writes its logs into {folder}"
    return ""
