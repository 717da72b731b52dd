"""The process that writes the logs of an agent, and its console, as the agent sees it: its start and its end."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from elastic.errors import ConfigError
from launcher.logs.console import notice_line
from launcher.logs.log_dir import HoldLogFolder
from launcher.logs.writer import ConsoleFile, WriterPipes, serve
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
from launcher.system.child_exit import reap_within
from launcher.system.descriptors import ready, widen_pipe
from launcher.system.processes import fork

PIPE_BYTES: Final = 1 << 20
"""Capacity of the pipe of orders: with the usual 64 kB an agent with much output would be woken for each piece."""
START_LIMIT_S: Final = 10.0
"""How long a directory may take to prove that it is writable."""
CLOSE_LIMIT_S: Final = 5.0
"""How long an exiting agent waits for a disk that does nothing."""
CLOSE_MAX_S: Final = 30.0
"""How long an exiting agent waits for a disk that makes progress but is slow."""
HURRY_LIMIT_S: Final = 0.5
"""How long an exiting agent waits for any disk after a second signal."""
LEAVE_LIMIT_S: Final = 1.0
"""How long the process may take to exit once everything is written."""
READ_BYTES: Final = 1 << 16


class WriterProcess:
    """A fork of this process, and the pipes to it."""

    def __init__(
        self,
        hold: HoldLogFolder,
        named: Path,
        story: str = "",
        consoles: Sequence[ConsoleFile] = (),
        notice: Callable[[str], bytes] = notice_line(None),  # noqa: B008  # It is a function.
    ) -> None:
        """Start it. No thread may run yet. Raises `ConfigError` if it cannot be started.

        `hold` takes the directory that is `named`, in that process. The others: see `launcher.logs.writer.serve`.
        """
        self._named = named
        orders, self.orders = os.pipe()
        self.answers, answers = os.pipe()
        self._consoles_written, consoles_written = os.pipe()
        widen_pipe(self.orders, PIPE_BYTES)
        self._moved = memoryview(mmap.mmap(-1, 8)).cast("Q")
        self._limit_s, self._max_s = CLOSE_LIMIT_S, CLOSE_MAX_S
        self.pid = fork("writes the logs")
        theirs = WriterPipes(orders, answers, consoles_written)
        if self.pid == 0:
            _run(answers, partial(serve, theirs, hold, story, consoles, self._moved, notice))
        for end in theirs:
            os.close(end)

    def held(self) -> LogFolderReady:
        """Wait until it holds the directory. Raises `ConfigError` if that is not writable, or does not respond."""
        why = (
            f"--log-dir {self._named} has not responded for {START_LIMIT_S:g} s (is its file server down?); "
            "repair it, or choose another directory"
        )
        frames, until_s = LogFrameReader(), time.monotonic() + START_LIMIT_S
        answers: list[AnyLogAnswer] = []
        while not answers and ready(self.answers, select.POLLIN, until_s - time.monotonic()):
            if not (data := os.read(self.answers, READ_BYTES)):
                raise ConfigError("the log writer was killed, perhaps by the OOM killer (see dmesg); start again")
            answers = frames.answers(data)
        match answers:
            case [LogFolderReady() as held, *_]:
                return held
            case [LogFolderRejected(why=refused), *_]:
                why = bytes_text(refused)
            case [LogNotice(text=said), *_]:
                why = f"cannot use --log-dir {self._named}: {bytes_text(said)}"
        self.hang_up()
        raise ConfigError(why)

    def hang_up(self) -> None:
        """Send no further orders."""
        os.close(self.orders)
        os.close(self.answers)

    def hurry(self) -> None:
        """Wait for no disk at the end."""
        self._limit_s = self._max_s = HURRY_LIMIT_S

    def end(self) -> None:
        """Wait until the console's files have everything, as long as their disk makes progress, and for the exit.

        A process that waits for a disk is left alone: it writes what it has, and exits then.
        """
        until_s, seen = time.monotonic() + self._max_s, -1
        while (moved := self._moved[0]) != seen and (left_s := until_s - time.monotonic()) > 0:
            seen = moved
            if ready(self._consoles_written, select.POLLIN, min(self._limit_s, left_s)):
                break
        os.close(self._consoles_written)
        reap_within(self.pid, LEAVE_LIMIT_S)


def _run(answers: int, serve: Callable[[], None]) -> NoReturn:
    """Run the process."""
    try:
        serve()
    except BaseException:  # noqa: BLE001  # The agent gets it: stderr is closed here, and the agent's code may not run.
        with contextlib.suppress(OSError):
            os.write(answers, packed(LogNotice(text_bytes(traceback.format_exc()))))
        os._exit(1)
    os._exit(0)
