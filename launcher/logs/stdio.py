"""stdout and stderr of an agent: one that is a regular file is written by a process of its own.

    agent, nursery ── 1 and 2, a pipe ──► launcher.logs.pipe_to_file ──► the file, by the descriptor that we were given

So nobody here waits for the file's disk, whoever it is that says something, and the file has all of it in its order. A
terminal or a pipe stays as it is: `Console` does not wait for them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import stat
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, NoReturn, Self

from launcher.logs.console import Console, notice_line
from launcher.logs.json_format import JsonFormatter, Severity
from launcher.logs.pipe_to_file import serve
from launcher.logs.writer_client import CLOSE_LIMIT_S, CLOSE_MAX_S, HURRY_LIMIT_S
from launcher.system import descriptors
from launcher.system.descriptors import write_stderr_line
from launcher.system.processes import fork

STANDARD: Final = (1, 2)
PIPE_BYTES: Final = 1 << 18
"""Room in the pipe: with the usual 64 kB an agent that shows much would be woken for each piece."""


class StdioRedirect:
    """Those of this process, until it is closed. No thread may run when it is opened."""

    def __init__(self, lines: JsonFormatter | None = None) -> None:
        """Nothing is changed yet. With `lines` all that is said is JSON."""
        self._lines = lines
        self._given: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._consoles: dict[int, Console] = {}
        self._pid = 0
        self._moved = memoryview(mmap.mmap(-1, 8 * len(STANDARD))).cast("Q")
        self._limit_s, self._max_s = CLOSE_LIMIT_S, CLOSE_MAX_S

    def __enter__(self) -> Self:
        """Start the process that writes, if there is a file. Raises `ConfigError` if there can be no process."""
        files = {fd: status for fd in STANDARD if stat.S_ISREG((status := os.fstat(fd)).st_mode)}
        if not files:
            return self
        _flush()
        for fd, file in files.items():  # Both may be the same one (`> out 2>&1`).
            self._given[fd] = os.dup(fd)
            self._first[fd] = next(first for first, other in files.items() if os.path.samestat(file, other))
        pipes = {fd: os.pipe() for fd in sorted(set(self._first.values()))}
        for _, writer in pipes.values():
            with suppress(OSError):  # The user has too much in pipes already; it is slower, then.
                fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._pid = fork("writes what is said into a file")
        if self._pid == 0:
            _run([(reader, self._given[fd]) for fd, (reader, _) in pipes.items()], self._moved, self._lines)
        for fd, first in self._first.items():
            os.dup2(pipes[first][1], fd)
        for ends in pipes.values():
            for end in ends:
                os.close(end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the files have everything, as long as their disk goes on.

        A process that waits for a disk is left alone: it writes what it has, and ends then.
        """
        if not self._pid:
            return
        for console in self._consoles.values():
            console.close()
        _flush()
        self.restore_fds()
        self._wait()
        for fd, given in self._given.items():
            if (error := descriptors.close(given)) is not None:  # It does not change how this process ends.
                name = "stdout" if fd == 1 else "stderr"
                write_stderr_line(
                    f"the file that is {name} cannot be written ({error.strerror}); a part of it may be missing"
                )

    def console(self, fd: int) -> Console:
        """The console that 1 or 2 is; one for both if both are one file or terminal: that has all in its order."""
        first = self._first.get(fd)
        if first is None:
            other = self._consoles.get(3 - fd)
            if other is not None and other.is_terminal and _same_terminal(*STANDARD):
                return other
            self._consoles[fd] = Console(fd, lines=self._lines)
            return self._consoles[fd]
        if first not in self._consoles:
            self._consoles[first] = Console(first, self.restore_fds, self._lines)
        return self._consoles[first]

    def write_line(self, text: str, command: str = "") -> None:
        """Write a line to stderr before there is a console, or after it, and `command` as a line of its own.

        It may wait for a terminal. As JSON both are one line.
        """
        if not self._say(text, command) and self._pid:  # Nobody reads the pipe: the process that writes was killed.
            self.restore_fds()
            self._say(text, command)

    def child_fd(self, fd: int) -> int | None:
        """What a child that has a process of its own for it is to have as `fd`; None: what this process has."""
        return self._given.get(fd)

    def restore_fds(self) -> None:
        """Make 1 and 2 what they were, here: what is said now is written at once, whatever the disk does."""
        for fd, given in self._given.items():
            os.dup2(given, fd)

    def hurry(self) -> None:
        """Wait for no disk at the end: a second signal ends this process at once."""
        self._limit_s = self._max_s = HURRY_LIMIT_S

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

    def _wait(self) -> None:
        pidfd = os.pidfd_open(self._pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            until_s, seen = time.monotonic() + self._max_s, -1
            while (moved := sum(self._moved)) != seen and (left_s := until_s - time.monotonic()) > 0:
                seen = moved
                if poll.poll(min(self._limit_s, left_s) * 1000):
                    os.waitpid(self._pid, 0)
                    return
        finally:
            os.close(pidfd)


def _same_terminal(one: int, other: int) -> bool:
    return os.isatty(one) and os.isatty(other) and os.fstat(one).st_rdev == os.fstat(other).st_rdev


def _run(flows: list[tuple[int, int]], moved: memoryview, lines: JsonFormatter | None) -> NoReturn:
    """The life of the process."""
    try:
        serve(flows, moved, notice_line(lines))
    except BaseException:  # noqa: BLE001  # Nothing of the agent's may run here. It hears that nobody reads the pipe.
        os._exit(1)
    os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
