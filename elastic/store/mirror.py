"""A copy of a part of the store: the state of one moment, which never goes back.

The listing is the truth; the watch only brings changes sooner. A mirror lists and watches, lists again now and then,
and begins again when the watch ends. Each range is listed as it was at one moment. When the ranges change, the mirror
lists all of them and begins a new watch.

The first listing and the watch are requested together, and the watch begins at its own moment: etcd delivers a watch
that begins in the past up to 100 ms late, and where many write at once every listing is of the past. If the watch began
later than the listing was taken, its changes wait for one more listing.

Changes that the watch delivers while a listing is on its way are applied to that listing too. Changes that are older
than the listing are ignored.

A listing whose revision is lower than one seen before it was requested comes from another store (one that lost its
data, and came back empty). The mirror takes it whole.
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
"""After an error: a random time between these, so that not all agents come back in the same moment."""
PACE_S = 20e-6
"""For each key in the picture: a burst of changes is told once in so long, since whoever is told looks at all of it.
For a thousand members 20 ms; the first change after a pause is told at once."""
PAUSES_PER_LOOK = 3.0
"""And no sooner than after so many times what the last look took: on a busy machine the picture goes on to grow."""
RELIST_SPREAD = (0.5, 1.0)
"""The next listing is due after a random part of the time, so that agents that came together do not list together."""
LASTED_S = 1.0
"""A watch that ended sooner is not begun again without a pause."""
RANGES_MAX = 64
"""Far more than anybody follows; each is a request."""


class Mirror:
    """Follows some ranges of a store. `entries` is replaced, never changed: who keeps it has a snapshot."""

    def __init__(
        self,
        store: Store,
        *,
        on_change: Callable[[Mirror], None],
        on_trouble: Callable[[StoreError | None], None],
        relist_every_s: float = 30.0,
        random_source: random.Random | None = None,
    ) -> None:
        """Follow nothing yet.

        `on_change` is called after each complete update: the first listing of a scope, each batch of the watch that
        changed something (several together, if they come faster than `PACE_S` allows), each later listing.
        `on_trouble` gets the error once when the store goes away, and None once when it is back.
        """
        self.entries: Mapping[str, KeyValue] = MappingProxyType({})
        self.revision = 0
        self.listings = 0
        """How many listings were taken; each is told, so that a reader knows how fresh its picture is."""
        self.listed = False
        """Whether `entries` is a complete picture of the ranges that are followed now."""
        self._store = store
        self._on_change = on_change
        self._on_trouble = on_trouble
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
        """What the watch has delivered since the listing that is on its way was requested; None if none is."""
        self._untold = False
        """Whether `on_change` has still to be called for what the watch brought."""
        self._pace_until = 0.0
        self._woken = asyncio.Event()
        """Set by `follow` and `refresh_soon`, and to get the second listing."""
        self._in_trouble = False

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
        """Follow until cancelled. Errors of the store are told and outlived; any other error is raised."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._follow(self._ranges)
            except (Compacted, WatchLost):
                # The listing that comes next tells whether the store is there.
                if asyncio.get_running_loop().time() < began + LASTED_S:
                    await self._pause()
            except StoreError as error:
                self._trouble(error)
                await self._pause()

    async def _pause(self) -> None:
        """Wait a moment, less if somebody asks for a listing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(*PAUSE_S)):
                await self._woken.wait()

    async def _follow(self, ranges: tuple[KeyRange, ...]) -> None:
        """List, watch, and list again now and then, until the ranges change or an error is raised."""
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
                # Another server or another token served the listing, so that only the watch is missing.
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
        """Read every range, and replace the entries; their revision is that of the oldest range.

        Not in one transaction: etcd 3.5.1 panics, and is gone for everybody, when a transaction that only reads is
        cancelled or reaches its deadline. One range is one moment; the leader follows just one.
        """
        self._woken.clear()
        floor = max(self.revision, self._store.revision_seen)
        self._meanwhile = meanwhile = list[WatchBatch]()
        # Without return_exceptions an error that comes with a cancellation would replace it.
        answers = await asyncio.gather(*map(self._store.list, ranges), return_exceptions=True)
        listings = [_listing(answer) for answer in answers]
        self._meanwhile = None
        if ranges != self._ranges:
            return
        revision = min(listing.revision for listing in listings)
        self._listed_at = [(span, listing.revision) for span, listing in zip(ranges, listings, strict=True)]
        self._trouble(None)
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
        """Check that the watch began no later than the listing, which is of `revision`; if it did, list once more."""
        if self._stood_at is not None and not self._joined:
            self._joined = revision >= self._stood_at
            if not self._joined:
                self._woken.set()

    async def _watch(self, ranges: Sequence[KeyRange], from_revision: int) -> None:
        """Apply what the watch delivers until an error ends it, and call `on_change` at its pace."""
        async with aclosing(self._store.watch(ranges, from_revision)) as batches:
            self._stood_at = (await anext(batches)).revision
            if self._meanwhile is None:  # Otherwise `_list` does it when the listing arrives.
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
        """Apply the changes that are newer than the entries. A batch that is delivered twice changes nothing."""
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
        """Tell that the picture is another one, and work out when to tell that again."""
        self._untold = False
        clock = asyncio.get_running_loop().time
        began = clock()
        self._on_change(self)
        ended = clock()
        self._pace_until = ended + max(len(self.entries) * PACE_S, (ended - began) * PAUSES_PER_LOOK)

    def _trouble(self, error: StoreError | None) -> None:
        """Tell when the store goes away, and when it is back."""
        if self._in_trouble != (error is not None):
            self._in_trouble = error is not None
            self._on_trouble(error)


async def _next(batches: AsyncGenerator[WatchBatch, None]) -> WatchBatch:
    return await anext(batches)


def _listing(answer: Listing | BaseException) -> Listing:
    if isinstance(answer, BaseException):
        raise answer
    return answer
