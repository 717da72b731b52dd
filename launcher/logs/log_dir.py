"""A log folder and who writes into it: every agent holds a shared lock, so that nobody's live logs are taken away.

With `--log_overwrite` the logs of the folder are begun anew, if no other agent writes there at this moment. Otherwise
they are appended to, and one line says so: a node that joins a running job must not delete what the others write.

The agents of one job share a folder, for each rank is in one place. Two jobs do not: both have a rank 0. The second one
writes into a folder of its own below the first one's, and says so.

Only this user can open the locks: `flock` needs no right to write, so every user who can read a lock file can lock it.
No agent waits for another process: without a lock it starts all the same, and one line says so.
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
"""Jobs that begin in one folder in the same moment may all give way; after so many folders the last one is shared."""
MODE = 0o600
LOCK_LIMIT_S = 2.0
"""How long to wait for a lock that another process holds alone. An agent does so for as long as it deletes old logs."""
LOCK_RETRY_S = 0.02
HELD = "another process holds it; fuser names that process"
FOREIGN = "it belongs to another user"
OURS = re.compile(
    r"(?:workerlog|serverlog|heterlog)\.\d+(?:\.\d+)?|envlog(?:\.[a-z]+)?\.\d+|endpoints(?:\.\d+)?\.log"
    r"|launcher(?:\.1)?\.log|events(?:\.1)?\.jsonl"
)
"""The files that we write. Nothing else in the folder is touched, whoever put it there."""


class LogFolder(NamedTuple):
    """A folder that this process writes into. All but `path` are lines for people, "" if all is as asked."""

    path: Path
    note: str
    moved: str
    unlocked: str


HoldLogFolder = Callable[[], contextlib.AbstractContextManager[LogFolder]]


@contextlib.contextmanager
def log_folder(path: Path, *, overwrite: bool = False, job: str = "", below: str = "") -> Iterator[LogFolder]:
    """Make the folder if needed, and hold its locks. Raises `ConfigError` if it cannot be written.

    `job` names the job whose logs are to be there, "" for a process that writes none. While another job has the folder,
    the one that this process has is the folder `below` in it.
    """
    check_log_dir(path)
    with contextlib.ExitStack() as locks:
        note, unlocked = _share_folder(path, overwrite, locks)
        moved = not_claimed = ""
        if job:
            path, moved, not_claimed = _claim_exclusively(path, job, below, locks)
        yield LogFolder(path, note, moved, unlocked or not_claimed)


def _share_folder(path: Path, overwrite: bool, locks: contextlib.ExitStack) -> tuple[str, str]:
    """Share the lock of the folder; what to say of its logs, and of a lock that cannot be had."""
    lock = path / LOCK
    refused = f"--log_overwrite: {lock} cannot be locked, so its logs are appended to" if overwrite else ""
    try:
        fd = locks.enter_context(descriptors.closing(_open(lock)))
    except PermissionError as error:
        return refused, _unlocked(lock, error)
    except OSError as error:
        raise ConfigError(f"{lock} cannot be opened ({error.strerror}); change --log_dir or its owner") from error
    try:
        note = _begin_anew(fd, path) if overwrite else ""
        _share(fd, time.monotonic() + LOCK_LIMIT_S)
    except BlockingIOError as error:
        return refused, _unlocked(lock, error)
    except OSError as error:
        why = f"{path} cannot be locked ({error.strerror})"
        note = f"--log_overwrite: {why}, so that its logs are appended to" if overwrite else ""
    return note, ""


def _unlocked(lock: Path, error: OSError) -> str:
    why = FOREIGN if isinstance(error, PermissionError) else HELD
    return (
        f"{lock} cannot be locked ({why}), so this agent starts without that lock; while it runs, start no other job "
        "with this --log_dir, and no agent with --log_overwrite"
    )


def _begin_anew(fd: int, path: Path) -> str:
    """Delete the logs, unless another agent writes there, which is then said."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return f"--log_overwrite: another agent writes into {path}, so that its logs are appended to"
    for file in path.iterdir():
        if OURS.fullmatch(file.name):
            try:
                file.unlink()
            except OSError as error:
                text = f"--log_overwrite cannot delete {file} ({error.strerror}); name another --log_dir"
                raise ConfigError(text) from error
    return ""


def _claim_exclusively(path: Path, job: str, below: str, locks: contextlib.ExitStack) -> tuple[Path, str, str]:
    """Take the folder for a job, or the first one `below` that no other job has; what to say of that."""
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
        pass  # What cannot be locked cannot be told apart.
    return (
        path,
        f"{first}; the logs of this one are in {path} (--log_dir names another folder)" if first else "",
        unlocked,
    )


def check_log_dir(path: Path) -> None:
    """Make the folder if needed and write a file in it. Raises `ConfigError` that says what to change."""
    hint = "name a folder that can be written with --log_dir"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError as error:
        raise ConfigError(f"--log_dir {path} is a file; {hint}") from error
    except OSError as error:
        raise ConfigError(f"--log_dir {path} cannot be written ({error.strerror}); {hint}") from error


def _open(path: Path) -> int:
    """Open a lock file for this user alone; one that an older version made loses the rights of others."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, MODE)
    with contextlib.suppress(OSError):  # Another user's: a group shares the folder.
        if os.fstat(fd).st_mode & 0o077:
            os.fchmod(fd, MODE)
    return fd


def _share(fd: int, until_s: float) -> None:
    """Take a shared lock. Raises `BlockingIOError` if another process holds it alone until then."""
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
    """A shared lock on a file that is there; who is the last one to hold it removes the file.

    Raises `OSError` if it cannot be had.
    """
    until_s = time.monotonic() + LOCK_LIMIT_S
    while True:
        with descriptors.closing(_open(path)) as fd:
            _share(fd, until_s)
            if not descriptors.is_file_at(fd, path):
                continue  # Somebody has removed it in this moment.
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            return


def _owner_job(folder: Path, job: str) -> str:
    """Which other job has the folder, in words; "" if none has. Removes the locks of jobs that are gone."""
    for path in folder.glob(".agents.*.lock"):
        match = JOB_LOCK.fullmatch(path.name)
        if match is None or match[1] == job:
            continue
        name = match[1].partition("@")[0]
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except PermissionError:  # Whether that job runs, only that user can tell.
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
