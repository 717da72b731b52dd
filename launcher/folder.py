"""A log folder and who writes into it: every agent holds a shared lock, so that nobody's live logs are taken away.

With `--log_overwrite` the logs of the folder are begun anew, if no other agent writes there at this moment. Otherwise
they are appended to, and one line says so: a node that joins a running job must not delete what the others write.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

from elastic.errors import ConfigError
from launcher.logs import check_log_dir

LOCK = ".agents.lock"
OURS = re.compile(
    r"(?:workerlog|serverlog|heterlog)\.\d+(?:\.1)?|envlog(?:\.[a-z]+)?\.\d+|endpoints(?:\.\d+)?\.log"
    r"|launcher(?:\.1)?\.log|events(?:\.1)?\.jsonl"
)
"""The files that we write. Nothing else in the folder is touched, whoever put it there."""


class LogFolder:
    """A folder that this process writes into until it is closed. `note` is a line for people, "" if all is as asked."""

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        """Make the folder if needed. Raises `ConfigError` if it cannot be written."""
        check_log_dir(path)
        self.note = ""
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

    def __enter__(self) -> Self:
        """Nothing more to do: the lock is held."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of the lock."""
        os.close(self._fd)

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
