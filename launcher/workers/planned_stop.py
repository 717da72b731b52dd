"""A planned stop of a node's workers: those that listen are asked to save and to leave, the others get SIGTERM.

Who was asked has a limit: `--save_limit` if it has committed a step in this generation, otherwise `--grace`. After that
it gets SIGTERM like the others, and SIGKILL after `--grace`. Who has said that everything is saved, and does not end
within `--grace` after that, gets the same. A stop that is not planned cancels all of this.
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
    """At most one at a time."""

    def __init__(self, talk: WorkerChannel, agent_log: AgentLog, save_limit_s: float) -> None:
        """Nothing is asked of anybody yet."""
        self._worker_channel = talk
        self._agent_log = agent_log
        self._save_limit_s = save_limit_s
        self._timers: list[asyncio.TimerHandle] = []
        self._on_saved: Callable[[TrackedProcess], None] | None = None
        """Hears which worker has saved, while a stop is under way."""

    def begin(
        self, nursery: NurseryClient, running: Callable[[], Collection[int]], grace_s: float, why: str, line: str
    ) -> None:
        """Stop the workers of `nursery`; `running` tells which of them have not ended, by local rank.

        `why` is that of `StopWorkers`; `line` goes into the logs of those that get a signal.
        """
        self.cancel()
        asked = self._worker_channel.ask_to_leave(sanitize.sanitize_line(why), running())
        for heard in asked:
            if heard.output is not None:
                heard.output.asked_to_leave(sanitize.sanitize_line(failure_report.asked_worker_line(why)))
        others = set(running()) - {heard.local_rank for heard in asked}
        if others or not asked:
            nursery.stop(grace_s, line, sorted(others))
        loop = asyncio.get_running_loop()

        def end(whom: list[TrackedProcess], words: str) -> None:
            left = [heard for heard in whom if heard.local_rank in running()]
            if left:
                self._agent_log.info(f"{_named(left)} did not {words}: {STOP.name}")
                nursery.stop(grace_s, line, [heard.local_rank for heard in left])

        def saved(heard: TrackedProcess) -> None:
            words = f"end within {grace_s:g} s (--grace) after it had saved"
            self._timers.append(loop.call_later(grace_s, end, [heard], words))

        self._on_saved = saved
        for limit_s, flag in ((self._save_limit_s, "--save_limit"), (grace_s, "--grace")):
            whom = [heard for heard in asked if heard.report.committed is (flag == "--save_limit")]
            if whom:
                self._agent_log.debug(f"asked {_named(whom)} to save and to leave within {limit_s:g} s ({flag})")
                words = f"leave within {limit_s:g} s ({flag}) after the word"
                self._timers.append(loop.call_later(limit_s, end, whom, words))

    def cancel(self) -> None:
        """Nobody is waited for any more: the workers are gone, or are being stopped without a plan."""
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        self._on_saved = None

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Give a worker that has saved its time to end."""
        if self._on_saved is not None and isinstance(message, SavedAndLeaving):
            self._on_saved(heard)


def _named(whom: Collection[TrackedProcess]) -> str:
    return ", ".join(process_name(Role.WORKER, heard.rank) for heard in whom)
