"""The in-memory store as a `Store`, with a clock and asynchronous watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from elastic.core.kv import (
    NOW,
    Compare,
    EndpointStatus,
    KeyRange,
    Lease,
    Listing,
    Operation,
    RefreshResult,
    TxnResult,
    WatchBatch,
    merged,
)
from elastic.errors import StoreUnavailable, WatchLost
from elastic.store.memory_core import MemoryCore


class MemoryStore:
    """One client of a `MemoryCore`. Several may share a core; each immediately receives the writes of the others.

    Leases end by `clock` (seconds, monotonic): each call first ends those that have expired, and so does a waiting
    watch. There is no background task to stop.
    """

    def __init__(self, core: MemoryCore, clock: Callable[[], float]) -> None:
        """Create a client of `core`."""
        self.core = core
        self._clock = clock
        self.revision_seen = 0
        """The highest revision of any answer since the store was last replaced."""
        self._watches: set[asyncio.Event] = set()
        """The events that wake the watches; a watch whose event is missing was lost."""
        self._closed = False

    def replace(self, core: MemoryCore) -> None:
        """Put another store behind the same address, as if etcd had lost its data. Every watch is lost."""
        self.core = core
        self.lose_watches()

    def lose_watches(self) -> None:
        """End every watch of this client with `WatchLost`."""
        lost, self._watches = self._watches, set()
        for woken in lost:
            woken.set()

    async def list(
        self,
        range: KeyRange,  # noqa: A002
        *,
        keys_only: bool = False,
        limit: int = 0,
    ) -> Listing:
        """See `Store.list`."""
        core = self._begin_call()
        listing = core.list(range, keys_only=keys_only, limit=limit)
        self.revision_seen = core.revision
        return listing

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """See `Store.txn`."""
        core = self._begin_call()
        result = core.txn(compares, then)
        self.revision_seen = core.revision
        return result

    async def watch(self, ranges: Sequence[KeyRange], from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """See `Store.watch`. All changes of one revision arrive in one batch."""
        if from_revision < NOW:
            raise ValueError(f"a watch from revision {from_revision}; the first is 1")
        core, spans, woken = self._begin_call(), merged(ranges), asyncio.Event()
        next_revision = core.revision + 1 if from_revision == NOW else from_revision
        self._watches.add(woken)
        core.subscribe(woken.set)
        try:
            core.history(spans, next_revision)  # raises Compacted before the watch begins
            yield WatchBatch(next_revision - 1, ())
            while woken in self._watches:
                woken.clear()
                core.expire(self._clock())
                batches = core.history(spans, next_revision)
                next_revision = max(next_revision, core.revision + 1)
                for batch in batches:
                    self.revision_seen = max(self.revision_seen, batch.revision)
                    yield batch
                expiry = core.next_expiry()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if expiry is None else max(0.0, expiry - self._clock())):
                        await woken.wait()
            raise WatchLost("the store was replaced by another one, or this client of it was closed")
        finally:
            core.unsubscribe(woken.set)
            self._watches.discard(woken)

    async def grant(self, ttl_s: float) -> Lease:
        """See `Store.grant`."""
        return self._begin_call().grant(ttl_s, self._clock())

    async def refresh(self, lease_id: int) -> RefreshResult:
        """See `Store.refresh`."""
        core = self._begin_call()
        return RefreshResult(core.refresh(lease_id, self._clock()), core.revision)

    async def revoke(self, lease_id: int) -> None:
        """See `Store.revoke`."""
        self._begin_call().revoke(lease_id)

    async def statuses(self) -> tuple[EndpointStatus, ...]:
        """Return one status, for this process."""
        return (EndpointStatus("memory", "memory", self._begin_call().revision, leader=True),)

    async def close(self) -> None:
        """End all watches; every later call raises `StoreUnavailable`."""
        self._closed = True
        self.lose_watches()

    def _begin_call(self) -> MemoryCore:
        """Begin a call: end expired leases first."""
        if self._closed:
            raise StoreUnavailable("this client of the store was closed")
        self.core.expire(self._clock())
        return self.core
