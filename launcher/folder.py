"""A log folder and who writes into it: every agent holds a shared lock, so that nobody's live logs are taken away.

With `--log_overwrite` the logs of the folder are begun anew, if no other agent writes there at this moment. Otherwise
they are appended to, and one line says so: a node that joins a running job must not delete what the others write.

The agents of one job share a folder, for each rank is in one place. Two jobs do not: both have a rank 0. The second one
writes into a folder of its own below the first one's, and says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from elastic.errors import ConfigError
from launcher import descriptors
from launcher.logs import check_log_dir

LOCK = ".agents.lock"
JOB_LOCK = re.compile(r"\.agents\.(.+)\.lock")
BELOW_MAX = 8
"""Jobs that begin in one folder in the same moment may all give way; after so many folders the last one is shared."""
OURS = re.compile(
    r"(?:workerlog|serverlog|heterlog)\.\d+(?:\.\d+)?|envlog(?:\.[a-z]+)?\.\d+|endpoints(?:\.\d+)?\.log"
    r"|launcher(?:\.1)?\.log|events(?:\.1)?\.jsonl"
)
"""The files that we write. Nothing else in the folder is touched, whoever put it there."""


class LogFolder:
    """A folder that this process writes into until it is closed.

    `path` is where. `note` and `moved` are lines for people, "" if all is as asked.
    """

    def __init__(self, path: Path, *, overwrite: bool = False, job: str = "", below: str = "") -> None:
        """Make the folder if needed. Raises `ConfigError` if it cannot be written.

        `job` names the job whose logs are to be there, "" for a process that writes none. While another job has the
        folder, `path` is the folder `below` in it.
        """
        check_log_dir(path)
        self.path = path
        self.note = self.moved = ""
        self._of_job: tuple[Path, int] | None = None
        try:
            self._fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(
                f"{path / LOCK} cannot be opened ({error.strerror}); change --log_dir or its owner"
            ) from error
        try:
            if overwrite:
                self._begin_anew(path)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError as error:
            if overwrite:
                self.note = f"{path} cannot be locked ({error.strerror}), so that its logs are appended to"
        if job:
            self._share_with_nobody_but(job, below)

    def __enter__(self) -> Self:
        """Nothing more to do: the locks are held."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the locks."""
        descriptors.close(self._fd)
        if self._of_job is not None:
            _let_go(*self._of_job)

    def _begin_anew(self, path: Path) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.note = f"another agent writes into {path}, so that its logs are appended to"
            return
        for file in path.iterdir():
            if OURS.fullmatch(file.name):
                try:
                    file.unlink()
                except OSError as error:
                    text = f"--log_overwrite cannot delete {file} ({error.strerror}); name another --log_dir"
                    raise ConfigError(text) from error

    def _share_with_nobody_but(self, job: str, below: str) -> None:
        """Take the folder for a job, or the first one `below` that no other job has."""
        wanted, first = self.path, ""
        with contextlib.suppress(OSError):  # What cannot be locked cannot be told apart.
            for _ in range(BELOW_MAX):
                self._of_job = _hold(self.path / f".agents.{job}.lock")
                other = _another(self.path, job)
                if not other:
                    break
                first = first or other
                _let_go(*self._of_job)
                self._of_job = None
                self.path /= below
                check_log_dir(self.path)
        if first:
            self.moved = (
                f"another job ({first}) writes its logs into {wanted}; those of this one are in {self.path} "
                "(--log_dir names another folder)"
            )


def _hold(path: Path) -> tuple[Path, int]:
    """A shared lock on a file that is there. Raises `OSError` if it cannot be had."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):  # Somebody has removed it in this moment.
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return path, fd
        except OSError:
            descriptors.close(fd)
            raise
        descriptors.close(fd)


def _let_go(path: Path, fd: int) -> None:
    """Free a lock; who is the last one to hold it removes the file."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    descriptors.close(fd)


def _another(folder: Path, job: str) -> str:
    """Another job that has the folder, "" if none has. What jobs left behind that are gone is removed."""
    for path in folder.glob(".agents.*.lock"):
        match = JOB_LOCK.fullmatch(path.name)
        if match is None or match[1] == job:
            continue
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            except BlockingIOError:
                return match[1].partition("@")[0]
            finally:
                descriptors.close(fd)
    return ""
