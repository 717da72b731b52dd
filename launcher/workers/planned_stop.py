"""A planned restart's stop of a node's workers: those that accept it are asked to save and to exit, others get SIGTERM.

A worker that was asked has a limit: `--save-timeout` if it has committed a step in this generation, otherwise
`--stop-timeout`. After that it gets SIGTERM like the others, and SIGKILL after `--stop-timeout`. A worker that has
reported that everything is saved, and does not exit within `--stop-timeout` after that, gets the same. A stop that is
not planned cancels all of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from elastic.channel.messages import SavedAndLeaving, WorkerMessage
from elastic.core.ps.model import Role
from elastic.core.text import process_name
from launcher.logs.logger import AgentLog
from launcher.system.worker_signals import STOP
from launcher.text import failure_report, sanitize
from launcher.workers.nursery_client import NurseryClient
from launcher.workers.reports.states import TrackedProcess
from launcher.workers.reports.worker_channel import WorkerChannel


class PlannedStop:
    """At most one is in progress."""

    def __init__(self, talk: WorkerChannel, agent_log: AgentLog, save_timeout_s: float) -> None:
        """`save_timeout_s` is the time in seconds that workers have to save and exit."""
        self._worker_channel = talk
        self._agent_log = agent_log
        self._save_timeout_s = save_timeout_s
        self._timers: list[asyncio.TimerHandle] = []
        self._on_saved: Callable[[TrackedProcess], None] | None = None
        """Called with each worker that has saved, while a stop is in progress."""

    def begin(
        self, nursery: NurseryClient, running: Callable[[], Collection[int]], stop_timeout_s: float, why: str, line: str
    ) -> None:
        """Stop the workers of `nursery`; `running` returns the local ranks of those that have not ended.

        `why` is that of `StopWorkers`; `line` goes into the logs of those that get a signal.
        """
        self.cancel()
        asked = self._worker_channel.ask_to_leave(sanitize.sanitize_line(why), running())
        for heard in asked:
            if heard.output is not None:
                heard.output.asked_to_leave(sanitize.sanitize_line(failure_report.asked_worker_line(why)))
        others = set(running()) - {heard.local_rank for heard in asked}
        if others or not asked:
            nursery.stop(stop_timeout_s, line, sorted(others))
        loop = asyncio.get_running_loop()

        def end(whom: list[TrackedProcess], words: str) -> None:
            left = [heard for heard in whom if heard.local_rank in running()]
            if left:
                self._agent_log.info(f"{_named(left)} did not {words}: {STOP.name}")
                nursery.stop(stop_timeout_s, line, [heard.local_rank for heard in left])

        def saved(heard: TrackedProcess) -> None:
            words = f"exit within {stop_timeout_s:g} s (--stop-timeout) after saving"
            self._timers.append(loop.call_later(stop_timeout_s, end, [heard], words))

        self._on_saved = saved
        for limit_s, flag in ((self._save_timeout_s, "--save-timeout"), (stop_timeout_s, "--stop-timeout")):
            whom = [heard for heard in asked if heard.report.committed is (flag == "--save-timeout")]
            if whom:
                self._agent_log.debug(f"asked {_named(whom)} to save and to exit within {limit_s:g} s ({flag})")
                words = f"exit within {limit_s:g} s ({flag}) after the request"
                self._timers.append(loop.call_later(limit_s, end, whom, words))

    def cancel(self) -> None:
        """Stop waiting: the workers have exited, or are being stopped without a plan."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        self._on_saved = None

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Give a worker that has saved its time to exit."""
        if self._on_saved is not None and isinstance(message, SavedAndLeaving):
            self._on_saved(heard)


def _named(whom: Collection[TrackedProcess]) -> str:
    return ", ".join(process_name(Role.WORKER, heard.rank) for heard in whom)
