"""stdout and stderr of an agent: the process that writes the logs also writes one that is a regular file.

    agent, fork server ── 1 and 2, a pipe ──► launcher.logs.pipe_to_file ──► the file, by its original descriptor

So neither the agent nor its fork server waits for the file's disk, and the file has all output in its order. A terminal
or a pipe is left unchanged: `Console` does not wait for it.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from launcher.logs.console import Console, notice_line
from launcher.logs.json_format import JsonFormatter, Severity
from launcher.logs.log_dir import HoldLogFolder
from launcher.logs.writer import ConsoleFile
from launcher.logs.writer_process import WriterProcess
from launcher.system import descriptors
from launcher.system.descriptors import write_stderr_line

STANDARD: Final = (1, 2)
PIPE_BYTES: Final = 1 << 18
"""Capacity of the pipe: with the usual 64 kB an agent that shows much output would be woken for each piece."""


class StdioRedirect:
    """Redirects stdout and stderr of this process, until it is closed. No thread may run when it is opened."""

    process: WriterProcess
    """The process that writes the files, and the logs."""

    def __init__(self, hold: HoldLogFolder, named: Path, story: str = "", lines: JsonFormatter | None = None) -> None:
        """With `lines` all messages are JSON. The other arguments are those of `WriterProcess`."""
        self._start = partial(WriterProcess, hold, named, story)
        self._lines = lines
        self._given: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._consoles: dict[int, Console] = {}

    def __enter__(self) -> Self:
        """Start the process that writes. Raises `ConfigError` if it cannot be started."""
        files = {fd: status for fd in STANDARD if stat.S_ISREG((status := os.fstat(fd)).st_mode)}
        _flush()
        for fd, file in files.items():  # Both may be the same one (`> out 2>&1`).
            self._given[fd] = os.dup(fd)
            self._first[fd] = next(first for first, other in files.items() if os.path.samestat(file, other))
        pipes = {fd: os.pipe() for fd in sorted(set(self._first.values()))}
        for _, writer in pipes.values():
            descriptors.widen_pipe(writer, PIPE_BYTES)
        consoles = [ConsoleFile(reader, self._given[fd]) for fd, (reader, _) in pipes.items()]
        self.process = self._start(consoles, notice_line(self._lines))
        for fd, first in self._first.items():
            os.dup2(pipes[first][1], fd)
        for ends in pipes.values():
            for end in ends:
                os.close(end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the files have everything, as long as their disk makes progress, and for the writer's exit."""
        for console in self._consoles.values():
            console.close()
        _flush()
        self.restore_fds()
        self.process.end()
        for fd, given in self._given.items():
            if (error := descriptors.close(given)) is not None:  # It does not change the exit code of this process.
                name = "stdout" if fd == 1 else "stderr"
                write_stderr_line(
                    f"cannot write the file that is {name} ({error.strerror}); a part of it may be missing"
                )

    def console(self, fd: int) -> Console:
        """Return the console of 1 or 2; one for both if both are one file or terminal, which has all in its order."""
        first = 3 - fd if _same_terminal(*STANDARD) and 3 - fd in self._consoles else self._first.get(fd, fd)
        if first not in self._consoles:
            self._consoles[first] = Console(first, self.restore_fds if fd in self._first else None, self._lines)
        return self._consoles[first]

    def write_line(self, text: str, command: str = "") -> None:
        """Write a line to stderr before there is a console, or after it, and `command` on a separate line.

        It may wait for a terminal. As JSON both are one line.
        """
        if not self._say(text, command) and self._given:  # No process reads the pipe: the one that writes was killed.
            self.restore_fds()
            self._say(text, command)

    def child_fd(self, fd: int) -> int | None:
        """Return the `fd` for a child that has a separate process for it; None: the one that this process has."""
        return self._given.get(fd)

    def restore_fds(self) -> None:
        """Restore the original 1 and 2 in this process: now output is written at once, whatever the disk does."""
        for fd, given in self._given.items():
            os.dup2(given, fd)

    def _say(self, text: str, command: str) -> bool:
        if self._lines is None:
            return write_stderr_line(text, command=command)
        level = {"error": Severity.ERROR, "warning": Severity.WARNING}.get(text.partition(":")[0], Severity.INFO)
        line = self._lines.agent_line(datetime.now(UTC), " ".join([*text.split(), *filter(None, [command])]), level)
        try:
            sys.stderr.buffer.write(line)
            sys.stderr.flush()
        except OSError:
            return False
        return True


def _same_terminal(one: int, other: int) -> bool:
    return os.isatty(one) and os.isatty(other) and os.fstat(one).st_rdev == os.fstat(other).st_rdev


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
