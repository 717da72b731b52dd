"""Writes the course of training into the store (`launcher.history.training_curve`), beside the work that matters.

Rank 0 reports its steps to the agent of its node, and that one writes: once in a while, when its workers of a
generation are gone, and before it leaves. Who has rank 0 next reads what is there, and goes on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

from elastic.channel.messages import Progress, WorkerMessage
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, KeyRange, KeyValue, Put
from elastic.core.view import encode
from elastic.errors import OutcomeUnknown, StoreError
from elastic.store.protocol import Store
from launcher.history import training_curve
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.logs.logger import AgentLog
from launcher.workers.reports.worker_channel import WorkerChannel, WorkerReport

WRITE_EVERY_S = 60.0
"""At most one write in this time while steps are made."""
ENDED_S = 1.0
"""So long after the workers are gone it is written: the store has better things to do in that moment."""
TRIES_MAX = 5
"""How often a write is tried that another node's write came before."""
METRICS_HELD_MAX = 64
DIGITS = 6
"""Of a loss, a rate or another metric."""


class CurvePublisher:
    """Takes what rank 0 reports, if it is on this node. A store that does not answer costs a line of detail."""

    def __init__(
        self,
        store: Store,
        keys: JobKeys,
        talk: WorkerChannel,
        agent_log: AgentLog,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is written before `run`. `clock` is a wall clock, which may be set; `steady` is monotonic."""
        self._store = store
        self._keys = keys
        self._worker_channel = talk
        self._agent_log = agent_log
        self._clock = clock
        self._steady = steady
        self._incarnation = ""
        self._curve = TrainingCurve()
        self._revision: int | None = None
        """Of the document as it was last read or written here; None: it must be read first."""
        self._g = 0
        self._metrics: dict[str, float | None] = {}
        self._newest: tuple[int, int] | None = None
        """Generation and step of a report that is no point yet."""
        self._due_at = float("-inf")
        self._reported = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leaves = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, incarnation: str) -> None:
        """Workers of a generation start. In another store the course begins anew."""
        if incarnation != self._incarnation:
            self._incarnation, self._curve, self._revision = incarnation, TrainingCurve(), None
        self._newest, self._metrics = None, {}

    def ended(self) -> None:
        """The workers are gone: what they reported is written soon."""
        self._take()
        if self._reported.is_set():
            self._hurry.set()

    async def run(self) -> None:
        """Write what comes."""
        while True:
            await self._reported.wait()
            if self._hurry.is_set():
                await self._pause(self._leaves, ENDED_S)
            self._reported.clear()
            self._hurry.clear()
            self._take()
            try:
                await self._write()
            except StoreError as error:
                self._revision = None
                self._agent_log.debug(f"the course of training is not in the store: {error}")
            if not self._reported.is_set():
                self._idle.set()
            await self._pause(self._hurry, WRITE_EVERY_S)

    async def settle(self, limit_s: float) -> None:
        """Wait until everything is written, at most so long: this agent leaves."""
        self._leaves.set()
        self.ended()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._idle.wait()

    # --- what rank 0 reports --------------------------------------------------------------------------------------

    def on_message(self, heard: WorkerReport, message: WorkerMessage) -> None:
        """Note what a worker says."""
        if not isinstance(message, Progress) or heard.rank != 0:
            return
        for name, number in message.metrics.items():
            if name in self._metrics or len(self._metrics) < METRICS_HELD_MAX:
                self._metrics[name] = number
        self._newest = (self._worker_channel.g, message.step)
        self._idle.clear()
        self._reported.set()
        if self._steady() >= self._due_at or self._worker_channel.g != self._g:
            self._take()

    def _take(self) -> None:
        """Make a point of the newest report, if there is one."""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        self._g, step = newest
        metrics = {name: _rounded(number) for name, number in self._metrics.items()}
        point = CurvePoint(step, round(self._clock(), 3), self._g, metrics.get("loss"))
        self._curve = training_curve.add(self._curve, point, metrics)
        self._due_at = self._steady() + self._curve.spacing_s

    # --- the store ------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Write, on top of what another node has written meanwhile; nothing into a store that has another job."""
        incarnation = encode(self._incarnation)
        key = self._keys.course
        for _ in range(TRIES_MAX):
            if self._revision is None:
                self._know((await self._store.list(KeyRange.key(key))).entries)
            assert self._revision is not None
            written = self._curve
            try:
                result = await self._store.txn(
                    (Compare.equals(self._keys.incarnation, incarnation), Compare.modified(key, self._revision)),
                    (Put(key, training_curve.write(written)),),
                )
            except OutcomeUnknown:
                self._revision = None
                raise
            if result.succeeded:
                self._revision = result.revision
                return
            job = await self._store.list(KeyRange.key(self._keys.incarnation))
            if [entry.value for entry in job.entries] != [incarnation]:
                return
            self._revision = None

    def _know(self, entries: tuple[KeyValue, ...]) -> None:
        """Go on with what stands there; what cannot be read is replaced."""
        self._revision = entries[0].mod_revision if entries else 0
        known = training_curve.read(entries[0].value) if entries else None
        if known is not None:
            self._curve = training_curve.merge(known, self._curve)

    @staticmethod
    async def _pause(event: asyncio.Event, limit_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await event.wait()


def _rounded(number: float | None) -> float | None:
    return float(f"{number:.{DIGITS}g}") if number is not None and math.isfinite(number) else None
