"""A local copy of a part of the store, at one revision that never decreases.

The listing is authoritative; the watch only delivers changes sooner. A mirror lists and watches, lists again from time
to time, and starts over when the watch ends. Each range is listed at one revision. When the ranges change, the mirror
lists all of them and begins a new watch.

The mirror requests the first listing and the watch together, and the watch begins at its own revision: etcd delivers a
watch that begins in the past up to 100 ms late, and while many clients write, every listing is of the past. If the
watch began after the listing was taken, its changes wait for one more listing.

Changes that the watch delivers while a listing is in flight are applied to that listing too. Changes that are older
than the listing are ignored.

A listing with a lower revision than one seen before its request comes from another store (one that lost its data, for
example). The mirror replaces all entries by it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import MappingProxyType

from elastic.core.kv import NOW, KeyChange, KeyRange, KeyValue, Listing, WatchBatch, merged
from elastic.errors import Compacted, StoreError, WatchLost
from elastic.store.protocol import Store

PAUSE_S = (0.2, 0.5)
"""Bounds of the random pause after an error, so that not all agents return at the same moment."""
PACE_S = 20e-6
"""Seconds for each key in the entries: the minimum interval between two calls of `on_change`, because its receiver
reads all entries. With a thousand members this is 20 ms; the first change after a pause is reported at once."""
PAUSES_PER_LOOK = 3.0
"""The pause after a call of `on_change` is at least this many times its duration, so that the mirror keeps up on a busy
host."""
RELIST_SPREAD = (0.5, 1.0)
"""Bounds of the random part of `relist_every_s` until the next listing, so that agents that started together do not
list together."""
LASTED_S = 1.0
"""A watch that ended sooner than this is restarted only after a pause."""
RANGES_MAX = 64
"""Far more ranges than any agent follows; each is a separate request."""


class Mirror:
    """Follows some ranges of a store. `entries` is replaced, never modified, so a reference to it is a snapshot."""

    def __init__(
        self,
        store: Store,
        *,
        on_change: Callable[[Mirror], None],
        on_outage: Callable[[StoreError | None], None],
        relist_every_s: float = 30.0,
        random_source: random.Random | None = None,
    ) -> None:
        """List the ranges again about every `relist_every_s` seconds. `follow` sets the ranges, and `run` follows them.

        `on_change` is called after each complete update: the first listing of the ranges, each batch of the watch that
        changed something (several together if they arrive faster than `PACE_S` allows), and each later listing.
        `on_outage` receives the error once when the store becomes unavailable, and None once when it is back.
        """
        self.entries: Mapping[str, KeyValue] = MappingProxyType({})
        self.revision = 0
        self.listings = 0
        """The number of listings so far; `on_change` is called for each, so a reader knows how fresh `entries` is."""
        self.listed = False
        """Whether `entries` has all keys of the ranges that are followed now."""
        self._store = store
        self._on_change = on_change
        self._on_outage = on_outage
        self._relist_every_s = relist_every_s
        self._random = random_source or random.Random()
        self._ranges: tuple[KeyRange, ...] = ()
        self._listed_at: list[tuple[KeyRange, int]] = []
        """The revision of each range in the last listing; older changes are ignored."""
        self._stood_at: int | None = None
        """The revision after which the watch delivers every change; None until it has begun."""
        self._joined = False
        """Whether no change is missing between the last listing and the watch."""
        self._meanwhile: list[WatchBatch] | None = None
        """The batches of the watch since the listing in flight was requested; None if no listing is in flight."""
        self._untold = False
        """Whether `on_change` must still be called for changes of the watch."""
        self._pace_until = 0.0
        self._woken = asyncio.Event()
        """Set by `follow` and `refresh_soon`, and to get the second listing."""
        self._in_outage = False

    def follow(self, ranges: Sequence[KeyRange]) -> None:
        """Follow these ranges and no others. Until they are listed, the entries stay as they are."""
        spans = merged(ranges)
        if len(spans) > RANGES_MAX:
            raise ValueError(f"{len(spans)} ranges to follow; at most {RANGES_MAX}")
        if spans != self._ranges:
            self._ranges = spans
            self.listed = False
            self._woken.set()

    def refresh_soon(self) -> None:
        """List again now."""
        self._woken.set()

    async def run(self) -> None:
        """Follow until cancelled. Errors of the store are reported and retried; any other error is raised."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._follow(self._ranges)
            except (Compacted, WatchLost):
                # The next listing shows whether the store is available.
                if asyncio.get_running_loop().time() < began + LASTED_S:
                    await self._pause()
            except StoreError as error:
                self._note_outage(error)
                await self._pause()

    async def _pause(self) -> None:
        """Wait a moment, or until a listing is requested."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(*PAUSE_S)):
                await self._woken.wait()

    async def _follow(self, ranges: tuple[KeyRange, ...]) -> None:
        """List, watch, and list again from time to time, until the ranges change or an error is raised."""
        if not ranges:
            self._woken.clear()
            if self.entries:
                self._show({}, self.revision)
            await self._woken.wait()
            return
        watching = self._begin_watch(ranges, NOW)
        try:
            await self._list(ranges)
            if self._stood_at is None and watching.done() and isinstance(watching.exception(), StoreError):
                # Another server or another token served the listing; only the watch must be repeated.
                watching = self._begin_watch(ranges, self.revision + 1)
            while ranges == self._ranges:
                await self._idle(watching)
                if watching.done():
                    watching.result()  # raises
                if ranges == self._ranges:
                    await self._list(ranges)
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    def _begin_watch(self, ranges: Sequence[KeyRange], from_revision: int) -> asyncio.Task[None]:
        self._stood_at, self._joined = None, False
        return asyncio.create_task(self._watch(ranges, from_revision), name="mirror")

    async def _idle(self, watching: asyncio.Task[None]) -> None:
        """Wait until the watch ends, `_woken` is set, or it is time for the next listing."""
        woken = asyncio.create_task(self._woken.wait())
        due_s = self._relist_every_s * self._random.uniform(*RELIST_SPREAD)
        try:
            await asyncio.wait({watching, woken}, timeout=due_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    async def _list(self, ranges: tuple[KeyRange, ...]) -> None:
        """Read every range, and replace the entries; their revision is the lowest of all ranges.

        The ranges are not read in one transaction: etcd 3.5.1 panics, which affects all its clients, when a read-only
        transaction is cancelled or reaches its deadline. Each range is consistent; the leader follows only one.
        """
        self._woken.clear()
        floor = max(self.revision, self._store.revision_seen)
        self._meanwhile = meanwhile = list[WatchBatch]()
        # Without return_exceptions, an error at the same time as a cancellation would replace it.
        answers = await asyncio.gather(*map(self._store.list, ranges), return_exceptions=True)
        listings = [_listing(answer) for answer in answers]
        self._meanwhile = None
        if ranges != self._ranges:
            return
        revision = min(listing.revision for listing in listings)
        self._listed_at = [(span, listing.revision) for span, listing in zip(ranges, listings, strict=True)]
        self._note_outage(None)
        self.listed = True
        self.listings += 1
        entries = {entry.key: entry for listing in listings for entry in listing.entries}
        if revision < floor:
            self._show(entries, revision)
            raise WatchLost(f"the store was replaced: revision {revision} after {floor}")
        self._join(revision)
        if self._joined:
            for batch in meanwhile:
                self._put(entries, self._news(entries, batch))
                revision = max(revision, batch.revision)
        self._show(entries, revision)

    def _join(self, revision: int) -> None:
        """Check that the watch began no later than `revision`, that of the listing; otherwise list once more."""
        if self._stood_at is not None and not self._joined:
            self._joined = revision >= self._stood_at
            if not self._joined:
                self._woken.set()

    async def _watch(self, ranges: Sequence[KeyRange], from_revision: int) -> None:
        """Apply the changes of the watch until an error ends it, and call `on_change` at the allowed pace."""
        async with aclosing(self._store.watch(ranges, from_revision)) as batches:
            self._stood_at = (await anext(batches)).revision
            if self._meanwhile is None:  # Otherwise `_list` joins when the listing arrives.
                self._join(self.revision)
            coming = asyncio.create_task(_next(batches))
            try:
                while True:
                    due_s = self._pace_until - asyncio.get_running_loop().time()
                    await asyncio.wait({coming}, timeout=max(0.0, due_s) if self._untold else None)
                    if coming.done():
                        batch = coming.result()
                        coming = asyncio.create_task(_next(batches))
                        self._apply(batch)
                    else:
                        self._notify()
            finally:
                coming.cancel()
                await asyncio.wait([coming])

    def _apply(self, batch: WatchBatch) -> None:
        """Apply the changes that are newer than the entries. A batch that is delivered twice has no effect."""
        if self._joined and batch.revision < self.revision:
            return
        if self._meanwhile is not None:
            self._meanwhile.append(batch)
        if not self._joined:
            return
        self.revision = batch.revision
        if news := self._news(self.entries, batch):
            entries = dict(self.entries)
            self._put(entries, news)
            self.entries = MappingProxyType(entries)
            self._untold = True
            if asyncio.get_running_loop().time() >= self._pace_until:
                self._notify()

    def _news(self, entries: Mapping[str, KeyValue], batch: WatchBatch) -> list[KeyChange]:
        """The changes of a batch that are newer than these entries and than the last listing."""
        news: list[KeyChange] = []
        for change in batch.changes:
            held, revision = entries.get(change.entry.key), change.entry.mod_revision
            if (held is None and change.deleted) or (held is not None and held.mod_revision >= revision):
                continue
            if not any(revision <= at and change.entry.key in span for span, at in self._listed_at):
                news.append(change)
        return news

    @staticmethod
    def _put(entries: dict[str, KeyValue], news: Sequence[KeyChange]) -> None:
        for change in news:
            if change.deleted:
                del entries[change.entry.key]
            else:
                entries[change.entry.key] = change.entry

    def _show(self, entries: dict[str, KeyValue], revision: int) -> None:
        """Replace the entries, and call `on_change`."""
        self.entries = MappingProxyType(entries)
        self.revision = revision
        self._notify()

    def _notify(self) -> None:
        """Call `on_change`, and set the earliest time of the next call."""
        self._untold = False
        clock = asyncio.get_running_loop().time
        began = clock()
        self._on_change(self)
        ended = clock()
        self._pace_until = ended + max(len(self.entries) * PACE_S, (ended - began) * PAUSES_PER_LOOK)

    def _note_outage(self, error: StoreError | None) -> None:
        """Report once that the store has become unavailable, or that it is back."""
        if self._in_outage != (error is not None):
            self._in_outage = error is not None
            self._on_outage(error)


async def _next(batches: AsyncGenerator[WatchBatch, None]) -> WatchBatch:
    return await anext(batches)


def _listing(answer: Listing | BaseException) -> Listing:
    if isinstance(answer, BaseException):
        raise answer
    return answer
