"""Logs the progress of this node's workers, from their messages."""

from __future__ import annotations

import asyncio

from elastic.channel.messages import JoiningGroup, Preparing, Progress, WorkerMessage
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.system.clock import boottime
from launcher.workers.reports.progress_text import ProgressFormatter
from launcher.workers.reports.states import TrackedProcess, WorkerStates

TICK_S = 1.0
PATIENCE_S = 50.0
"""How long a progress line waits until no worker is in the middle of a line on the same terminal."""


class ProgressReporter:
    """Logs the progress of one node. It has a timer only while there may be something to log."""

    def __init__(
        self, states: WorkerStates, agent_log: AgentLog, shared: tuple[Console, ...], *, shown_elsewhere: bool
    ) -> None:
        """`shared` are the consoles on which workers' output is shown; the log's is one of them.

        `shown_elsewhere`: the live status shows the progress on the console, so progress lines are only logged.
        """
        self._states = states
        self._agent_log = agent_log
        self._shared = shared
        self._terminal = shared[-1].is_terminal
        self._formatter = ProgressFormatter(self._terminal)
        self._timer: asyncio.TimerHandle | None = None
        self._shown_elsewhere = shown_elsewhere

    def end(self) -> None:
        """Log the last step of workers that have exited, and forget their progress."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._say_progress(boottime(), last=True)
        self._formatter = ProgressFormatter(self._terminal)

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Log what a message of a worker makes reportable, and schedule the rest."""
        tells = heard.rank == 0 if isinstance(message, Progress) else isinstance(message, JoiningGroup | Preparing)
        if tells and self._timer is None:
            self._tick()

    def _tick(self) -> None:
        self._timer = None
        now, workers = boottime(), self._states.seen.values()
        for line in self._formatter.waits(workers, now):
            self._agent_log.info(line)
        if not self._inside_a_line or self._formatter.overdue_s(now) >= PATIENCE_S:
            self._say_progress(now)
        if self._formatter.pending(workers):
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    @property
    def _inside_a_line(self) -> bool:
        return self._terminal and not all(one.at_line_start for one in self._shared if one.is_terminal)

    def _say_progress(self, now: float, *, last: bool = False) -> None:
        for one in self._states.seen.values():
            if one.rank == 0 and (line := self._formatter.progress(one.report, now, last=last)):
                (self._agent_log.file_only if self._shown_elsewhere else self._agent_log.info)(line)
