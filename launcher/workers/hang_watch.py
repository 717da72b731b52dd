"""Detects workers that stopped making steps (`launcher.health.hang_detector`), and logs their stack traces."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from elastic.channel.messages import PreparationOver, Preparing, Progress, WorkerHello, WorkerMessage
from launcher.health.hang_detector import HangDetector
from launcher.system.processes import is_frozen
from launcher.system.time_limit import wait_at_most
from launcher.workers.exit_classification import GiveUp
from launcher.workers.failure_causes import HUNG
from launcher.workers.reports.stacks import wait_quiet
from launcher.workers.reports.states import TrackedProcess
from launcher.workers.reports.worker_channel import WorkerChannel

STACKS_LIMIT_S = 2.0
"""How long the workers of a node may take to write their stack traces."""


class HangWatch:
    """Watches the workers of one generation after the other, on one node."""

    def __init__(
        self,
        talk: WorkerChannel,
        limit_s: float,
        give_up: GiveUp,
    ) -> None:
        """`limit_s` as in `HangDetector`; `give_up` is called for the hung workers, the furthest behind first."""
        self._worker_channel = talk
        self._limit_s = limit_s
        self._give_up = give_up
        self._g = 0
        self._clock = HangDetector(0.0)
        self._changed = asyncio.Event()

    def begin(self, g: int) -> None:
        """Watch the workers of generation `g`."""
        self._g, self._clock = g, HangDetector(self._limit_s)
        self._changed.set()

    def end(self) -> None:
        """Stop watching: the workers have exited, or are being stopped."""
        self._clock = HangDetector(0.0)
        self._changed.set()

    def gone(self, local_rank: int) -> None:
        """Note that a worker has ended."""
        self._clock.gone(local_rank, time.monotonic())
        self._changed.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            due_at = self._clock.due_at
            self._changed.clear()
            try:
                async with asyncio.timeout(None if due_at is None else due_at - time.monotonic()):
                    await self._changed.wait()
            except TimeoutError:
                await self._check_hangs()

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Note a message of a worker."""
        clock, idle = self._clock, self._clock.due_at is None
        match message:
            case WorkerHello():  # Another program of a worker's shell script has made no step yet.
                clock.gone(heard.local_rank, time.monotonic())
            case Progress(step):
                clock.reported(heard.local_rank, step, time.monotonic())
            case Preparing():
                clock.preparing(heard.local_rank)
            case PreparationOver():
                clock.ready(heard.local_rank, time.monotonic())
        if idle is not (clock.due_at is None):
            self._changed.set()

    async def _check_hangs(self) -> None:
        self._worker_channel.catch_up()  # Messages that arrived while this process was suspended.
        clock, g = self._clock, self._g
        for local, heard in self._worker_channel.workers.items():
            if heard.connection is None:  # It reports nothing more, so a hang cannot be detected either.
                clock.gone(local, time.monotonic())
        if not clock.late(time.monotonic()):
            return
        frozen = {
            local
            for local, heard in self._worker_channel.workers.items()
            if heard.connection is not None and is_frozen(heard.connection.pid)
        }
        shown = await self._stacks(clock, frozen)
        if self._clock is not clock:
            return  # The workers have exited, or are being stopped for another reason; others may run by now.
        self._worker_channel.catch_up()
        late = clock.late(time.monotonic())  # A worker that has continued in the meantime is only slow.
        if late:
            self.end()
            self._give_up(
                g,
                HUNG,
                {
                    local: {"limit_s": self._limit_s, "step": step, "state": _state(local in frozen, local in shown)}
                    for local, step in late
                },
            )

    async def _stacks(self, clock: HangDetector, frozen: Collection[int]) -> set[int]:
        """Make every worker of the node write its stack traces; return the workers that did. Suspended ones cannot.

        Stops early when another `clock` is active: then these workers no longer run.
        """
        workers = self._worker_channel.workers
        logs = {local: heard.output.log for local, heard in workers.items() if heard.output is not None}
        before = {local: (log, log.bytes_written) for local, log in logs.items()}
        asked = {
            local: before[local]
            for local, heard in workers.items()
            if local in before and local not in frozen and heard.connection and heard.connection.show_stacks()
        }
        if asked:
            quiet = wait_quiet(asked.values(), self._changed, lambda: self._clock is not clock)
            await wait_at_most(STACKS_LIMIT_S, quiet)
        return {local for local, (log, size) in asked.items() if log.bytes_written > size}


def _state(frozen: bool, shown: bool) -> str:
    """Describe a hung worker: whether its process is suspended, and whether its stack traces are in its log."""
    if frozen:
        return "its process is suspended, by SIGSTOP or a debugger"
    return "its stack traces are in its log" if shown else "it did not write its stack traces"
