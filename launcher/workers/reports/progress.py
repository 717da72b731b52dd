"""Reports the progress of this node's workers to people, from their messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from elastic.channel.messages import (
    GroupFormed,
    JoiningGroup,
    PreparationOver,
    Preparing,
    Progress,
    WorkerHello,
    WorkerMessage,
)
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.workers.reports.progress_text import ProgressFormatter
from launcher.workers.reports.worker_channel import WorkerChannel, WorkerReport

TICK_S = 1.0
PATIENCE_S = 50.0
"""So long a line of progress waits for a moment in which no worker is in the middle of a line on the same terminal."""


class ProgressReporter:
    """One node's teller. It has a timer only while there may be something to say."""

    def __init__(
        self,
        talk: WorkerChannel,
        agent_log: AgentLog,
        shared: tuple[Console, ...],
        *,
        shown_elsewhere: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`shared` are the consoles on which workers' output is shown; the log's is one of them.

        `shown_elsewhere`: progress is shown live on the console, so that its lines need only be kept.
        """
        self._worker_channel = talk
        self._agent_log = agent_log
        self._shared = shared
        self._clock = clock
        self._terminal = shared[-1].is_terminal
        self._formatter = ProgressFormatter(self._terminal)
        self._timer: asyncio.TimerHandle | None = None
        self._shown_elsewhere = shown_elsewhere

    def end(self) -> None:
        """The workers are gone: the last step is said, and what is known of them does not count for the next ones."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._say_progress(self._formatter.progress(self._clock(), last=True))
        self._formatter = ProgressFormatter(self._terminal)

    def on_message(self, heard: WorkerReport, message: WorkerMessage) -> None:
        """Note what a worker says."""
        now, telling = self._clock(), self._formatter
        match message:
            case WorkerHello():
                telling.gone(heard.rank)
            case JoiningGroup(missing):
                telling.joining(heard.rank, missing, now)
            case GroupFormed():
                telling.joining(heard.rank, "", now)
            case Preparing(what):
                telling.preparing(heard.rank, what, now)
            case PreparationOver():
                telling.preparing(heard.rank, "", now)
            case Progress(step, world, metrics) if heard.rank == 0:
                telling.reported(step, world, metrics, now, message.total)
            case _:
                return
        if self._timer is None:
            self._tick()

    def _tick(self) -> None:
        self._timer = None
        now = self._clock()
        for heard in self._worker_channel.workers.values():
            if heard.connection is None:
                self._formatter.gone(heard.rank)
        for line in self._formatter.waits(now):
            self._agent_log.info(line)
        if not self._inside_a_line or self._formatter.overdue_s(now) >= PATIENCE_S:
            self._say_progress(self._formatter.progress(now))
        if self._formatter.pending:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    @property
    def _inside_a_line(self) -> bool:
        return self._terminal and not all(one.at_line_start for one in self._shared if one.is_terminal)

    def _say_progress(self, line: str) -> None:
        if line:
            (self._agent_log.file_only if self._shown_elsewhere else self._agent_log.info)(line)
