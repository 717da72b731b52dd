"""The process that writes the logs of an agent, as the agent sees it: its start and its end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from elastic.errors import ConfigError
from launcher.logs.log_dir import LogFolder
from launcher.logs.writer import serve
from launcher.logs.writer_protocol import (
    AnyLogAnswer,
    LogFolderReady,
    LogFolderRejected,
    LogFrameReader,
    LogNotice,
    bytes_text,
    packed,
    text_bytes,
)
from launcher.system.processes import fork

PIPE_BYTES: Final = 1 << 20
"""Room in the pipe of orders: with the usual 64 kB an agent whose workers write much would be woken for each piece."""
START_LIMIT_S: Final = 10.0
"""So long a folder may take to show that it can be written."""
LEAVE_LIMIT_S: Final = 1.0
"""So long it may take to end when all is written."""
READ_BYTES: Final = 1 << 16
TITLE: Final = ("elastic-launch:", "writes", "logs")


class LogProcess:
    """A fork of this process, and the two pipes to it."""

    def __init__(self, hold: Callable[[], LogFolder], named: Path, story: str) -> None:
        """Start it. No thread may run yet. See `launcher.logs.writer_client.LogWriterClient` for what it is given."""
        self._named = named
        orders, self.orders = os.pipe()
        self.answers, answers = os.pipe()
        with contextlib.suppress(OSError):  # The user has too much in pipes already; it is slower, then.
            fcntl.fcntl(self.orders, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.pid = fork("writes the logs")
        if self.pid == 0:
            _run(orders, answers, hold, story)
        os.close(orders)
        os.close(answers)

    def held(self) -> LogFolderReady:
        """Wait until it holds the folder. Raises `ConfigError` if the folder is not good, or does not answer."""
        for answer in self._read_answers(START_LIMIT_S):
            match answer:
                case LogFolderReady():
                    return answer
                case LogFolderRejected():
                    self.leave()
                    raise ConfigError(bytes_text(answer.why))
                case LogNotice():
                    self.leave()
                    raise ConfigError(f"--log_dir {self._named} cannot be used: {bytes_text(answer.text)}")
        os.close(self.orders)
        os.close(self.answers)
        raise ConfigError(
            f"--log_dir {self._named} has not answered for {START_LIMIT_S:g} s (a network disk without its server?); "
            "mend it, or name another folder"
        )

    def leave(self) -> None:
        """Let it end. One that waits for a disk is not waited for: it ends when the disk does."""
        os.close(self.orders)
        os.close(self.answers)
        pidfd = os.pidfd_open(self.pid)
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            if poll.poll(LEAVE_LIMIT_S * 1000):
                os.waitpid(self.pid, 0)
        finally:
            os.close(pidfd)

    def _read_answers(self, limit_s: float) -> Iterator[AnyLogAnswer]:
        """What it answers before there is a loop, until it has been silent for too long."""
        frames, until_s = LogFrameReader(), time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        while poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
            if not (data := os.read(self.answers, READ_BYTES)):
                raise ConfigError("the process that writes the logs was killed; see why, and start again")
            yield from frames.answers(data)


def _run(orders: int, answers: int, hold: Callable[[], LogFolder], story: str) -> NoReturn:
    """The life of the process."""
    try:
        serve((orders, answers), hold, story, TITLE)
    except BaseException:  # noqa: BLE001  # It is told: stderr is closed here, and nothing of the agent's may run.
        with contextlib.suppress(OSError):
            os.write(answers, packed(LogNotice(text_bytes(traceback.format_exc()))))
        os._exit(1)
    os._exit(0)
