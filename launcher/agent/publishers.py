"""Publishes small documents of the job in the store, at low priority: the newest checkpoint and the training curve.

Rank 0 reports its steps to the agent of its node, and that agent writes the curve: at intervals, after its workers of a
generation have exited, and before it leaves. The node that has rank 0 next reads the document and continues it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from elastic.channel.messages import Progress, WorkerMessage
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, KeyRange, Put
from elastic.core.model import SavedCheckpoint
from elastic.core.view import encode
from elastic.core.view_reader import decode
from elastic.errors import DocumentError, StoreError
from elastic.store.protocol import Store
from launcher.history import training_curve
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.logs.logger import AgentLog
from launcher.system.time_limit import wait_at_most
from launcher.workers.reports.states import TrackedProcess, WorkerReport

TRIES_MAX = 5
"""Attempts of a write that fails because another node wrote first."""
CHECKPOINT_PAUSE_S = 1.0
"""Minimum time between two writes of the newest checkpoint, however often workers save."""
CURVE_PAUSE_S = 60.0
"""Minimum time between two writes of the curve during training."""
ENDED_S = 1.0
"""Time between the exit of the workers and the write: etcd is busy with the recovery at that time."""
DIGITS = 6
"""Significant digits of a loss, a rate or another metric."""


class DocumentPublisher:
    """The loop of a publisher: a subclass calls `_changed`, and implements `_write`.

    If the store does not answer, a debug message says so, and the document is written with the next change.
    """

    _what = "a document"
    """The name of the document in debug messages."""

    def __init__(self, store: Store, keys: JobKeys, agent_log: AgentLog, pause_s: float, hurry_pause_s: float) -> None:
        """Seconds between two writes: at least `pause_s`; after `hurry` the next write comes `hurry_pause_s` later."""
        self._store = store
        self._keys = keys
        self._agent_log = agent_log
        self._pause_s = pause_s
        self._hurry_pause_s = hurry_pause_s
        self._pending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._leaves = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def hurry(self) -> None:
        """Write the last reports of the workers soon, after they have exited."""
        if self._pending.is_set():
            self._hurry.set()

    async def run(self) -> None:
        """Write changes until cancelled."""
        while True:
            await self._pending.wait()
            if self._hurry.is_set() and self._hurry_pause_s:
                await wait_at_most(self._hurry_pause_s, self._leaves.wait())
            self._pending.clear()
            self._hurry.clear()  # Before the write: a hurry that begins during it is for the next change.
            try:
                await self._write()
            except StoreError as error:
                self._agent_log.debug(f"cannot write {self._what} to etcd: {error}")
            if not self._pending.is_set():
                self._idle.set()
            await wait_at_most(self._pause_s, self._hurry.wait())

    async def settle(self, limit_s: float) -> None:
        """Wait until everything is written, or `limit_s` seconds have passed, before this agent leaves."""
        self._leaves.set()
        self.hurry()
        await wait_at_most(limit_s, self._idle.wait())

    def _changed(self) -> None:
        self._idle.clear()
        self._pending.set()

    async def _write(self) -> None:
        """Write the newest document. Raises `StoreError`."""
        raise NotImplementedError

    async def _is_job(self, incarnation: bytes) -> bool:
        """Return whether the store still has the job of this incarnation; a store that lost its data has another."""
        stored = await self._store.list(KeyRange.key(self._keys.incarnation))
        return [entry.value for entry in stored.entries] == [incarnation]


class CheckpointPublisher(DocumentPublisher):
    """Publishes the newest checkpoint that this node's workers committed."""

    def __init__(self, store: Store, keys: JobKeys, host: str, agent_log: AgentLog) -> None:
        """`host` is the address of this host, which may be the only one that can read the checkpoint."""
        super().__init__(store, keys, agent_log, CHECKPOINT_PAUSE_S, hurry_pause_s=0.0)
        self._host = host
        self._newest: SavedCheckpoint | None = None
        self._incarnation = ""

    def committed(self, step: int, folder: str, *, run: int, g: int, incarnation: str) -> None:
        """Note that a worker of generation `g` reports its checkpoint of `step` complete in `folder`."""
        saved = SavedCheckpoint(step=step, host=self._host, folder=folder, run=run, g=g, at=time.time())
        if incarnation != self._incarnation or saved.replaces(self._newest):  # A new store counts from 1 again.
            self._newest, self._incarnation = saved, incarnation
            self._what = f"the checkpoint of step {step}"
            self._changed()

    def for_workers(self, stored: SavedCheckpoint | None) -> str:
        """Return the newest checkpoint as JSON for workers, from the store or this node; "" if there is none."""
        newest = stored if self._newest is None or not self._newest.replaces(stored) else self._newest
        if newest is None:
            return ""
        return msgspec.json.encode({"step": newest.step, "host": newest.host, "folder": newest.folder}).decode()

    async def _write(self) -> None:
        """Write unless the store has a newer checkpoint; an unreadable document is replaced."""
        saved, key, incarnation = self._newest, self._keys.saved, encode(self._incarnation)
        assert saved is not None
        same_job = Compare.equals(self._keys.incarnation, incarnation)
        for _ in range(TRIES_MAX):
            if not await self._is_job(incarnation):
                return  # This store does not have the job of the checkpoint.
            entries = (await self._store.list(KeyRange.key(key))).entries
            if entries and not saved.replaces(self._read(entries[0].value)):
                return
            same = Compare.modified(key, entries[0].mod_revision if entries else 0)
            if (await self._store.txn((same_job, same), (Put(key, encode(saved)),))).succeeded:
                self._agent_log.debug(f"published the checkpoint of step {saved.step} as the newest of the job")
                return

    def _read(self, value: bytes) -> SavedCheckpoint | None:
        with suppress(DocumentError):
            found = decode(self._keys, self._keys.saved, value)
            return found if isinstance(found, SavedCheckpoint) else None
        return None


class CurvePublisher(DocumentPublisher):
    """Publishes the metrics that rank 0 reports, if it runs on this node."""

    _what = "the training curve"

    def __init__(
        self,
        store: Store,
        keys: JobKeys,
        agent_log: AgentLog,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is a wall clock in Unix seconds, which may be set; `steady` is monotonic, in seconds."""
        super().__init__(store, keys, agent_log, CURVE_PAUSE_S, ENDED_S)
        self._clock = clock
        self._steady = steady
        self._incarnation = ""
        self._curve = TrainingCurve()
        self._revision: int | None = None
        """The revision of the document as this node last read or wrote it; None: read it first."""
        self._g = 0
        self._newest: tuple[int, WorkerReport] | None = None
        """The generation of a step that is not a point of the curve yet, and the report of its worker."""
        self._due_at = float("-inf")

    def begin(self, incarnation: str) -> None:
        """Note that workers of a generation start. Another incarnation of the store begins a new curve."""
        if incarnation != self._incarnation:
            self._incarnation, self._curve, self._revision = incarnation, TrainingCurve(), None
        self._newest = None

    def hurry(self) -> None:
        """Write the last reports of the workers soon, after they have exited."""
        self._take()
        super().hurry()

    # --- what rank 0 reports --------------------------------------------------------------------------------------

    def on_message(self, heard: TrackedProcess, message: WorkerMessage) -> None:
        """Note a step that rank 0 reports."""
        if not isinstance(message, Progress) or heard.rank != 0:
            return
        self._newest = (heard.g, heard.report)
        self._changed()
        if self._steady() >= self._due_at or heard.g != self._g:
            self._take()

    def _take(self) -> None:
        """Add the newest report to the curve, if there is one."""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        self._g, steps = newest[0], newest[1].steps
        assert steps.step is not None
        metrics = {name: _rounded(number) for name, number in steps.metrics.items()}
        point = CurvePoint(steps.step, round(self._clock(), 3), self._g, metrics.get("loss"))
        self._curve = training_curve.add(self._curve, point, metrics)
        self._due_at = self._steady() + self._curve.spacing_s

    # --- the store ------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Write the curve, after merging what another node wrote; nothing if the store has another job."""
        self._take()
        incarnation = encode(self._incarnation)
        key = self._keys.curve
        for _ in range(TRIES_MAX):
            if self._revision is None:
                entries = (await self._store.list(KeyRange.key(key))).entries
                self._revision = entries[0].mod_revision if entries else 0
                known = training_curve.read(entries[0].value) if entries else None
                if known is not None:  # An unreadable document is replaced.
                    self._curve = training_curve.merge(known, self._curve)
            compares = Compare.equals(self._keys.incarnation, incarnation), Compare.modified(key, self._revision)
            self._revision = None  # Until the result of the write is known.
            result = await self._store.txn(compares, (Put(key, training_curve.write(self._curve)),))
            if result.succeeded:
                self._revision = result.revision
            if result.succeeded or not await self._is_job(incarnation):
                return


def _rounded(number: float | None) -> float | None:
    return float(f"{number:.{DIGITS}g}") if number is not None and math.isfinite(number) else None
