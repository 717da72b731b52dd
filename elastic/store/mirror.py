"""A part of the store kept here, always as it was at one moment, and always moving forward.

The listing is the truth, the watch is a hint that comes sooner: list, watch, list again when the watch ends and now and
then besides. Each range is listed as it was at one moment.

The first listing and the watch are asked for together, and the watch begins at its own moment: etcd tells a watch that
begins in the past up to 100 ms late, and where many write at once every listing is of the past. If the watch began
later than the listing was taken, what it tells waits for one more listing.

When the ranges change, those that were followed before are not listed again: the watch takes on what is new, and a key
that is not wanted any more stays on it unheard. Where that cannot be, a new watch goes on where the old one was left.
So a thousand agents that begin to follow one more key each ask for that one key; and whoever knows already how it was
at some revision asks for nothing: the watch goes on from there.

A listing whose revision is lower than one seen before it was asked for comes from another store (one that lost its
data, and came back empty); it is then taken whole, and `replaced` counts it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from elastic.core.kv import NOW, KeyRange, KeyValue, Listing, WatchBatch, merged
from elastic.errors import Compacted, StoreError, WatchLost
from elastic.store.protocol import Store, WatchExtension

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
WATCHED_MAX = 16
"""Ranges on one watch, with keys that are not wanted any more; a longer one is left for a new one."""


@dataclass(slots=True)
class _WatchStart:
    """A watch that began now, until a listing is known that is not older: from which revision it tells, and what."""

    stood_at: int | None = None
    listed: bool = False
    batches: list[WatchBatch] = field(default_factory=list)


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
        self.replaced = 0
        self.listings = 0
        """How many listings were taken; each is told, so that a reader knows how fresh its picture is."""
        self.listed = False
        """Whether `entries` is a complete picture of the ranges that are followed now."""
        self.standing = asyncio.Event()
        """Set once a watch has begun to deliver."""
        self._store = store
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._relist_every_s = relist_every_s
        self._random = random_source or random.Random()
        self._ranges: tuple[KeyRange, ...] = ()
        self._known: KeyValue | None = None
        """What `follow` was told of one of them."""
        self._covered: tuple[KeyRange, ...] = ()
        """Ranges of the last watch; all that is before `revision` is in `entries`."""
        self._followed: tuple[KeyRange, ...] = ()
        """Ranges that the watch keeps up to date in `entries`."""
        self._watched: tuple[KeyRange, ...] = ()
        """Those, and keys that are still on the watch although nobody wants them."""
        self._listed_from = 0
        """The revision after the oldest listing of the ranges that were listed last."""
        self._listed_at: list[tuple[KeyRange, int]] = []
        """Ranges that were listed, at which revision; older events of them are no news."""
        self._beginning: _WatchStart | None = None
        self._stale = False
        """Whether somebody asked for a listing that has not begun."""
        self._untold = False
        """Whether `on_change` has still to be called for what the watch brought."""
        self._pace_until = 0.0
        self._graves: dict[str, int] = {}
        """Keys that were deleted since the last listing, and at which revision."""
        self._woken = asyncio.Event()
        self._scope_changed = False
        self._in_trouble = False

    def follow(self, ranges: Sequence[KeyRange], known: KeyValue | None = None) -> None:
        """Follow these ranges and no others. Until they are listed, the entries stay as they are.

        `known` is an entry as it was at its `mod_revision`. If its key is a range that a watch can take on, the key is
        not listed; the picture shows it as it was then, until the watch brings what has become of it.
        """
        spans = merged(ranges)
        if len(spans) > RANGES_MAX:
            raise ValueError(f"{len(spans)} ranges to follow; at most {RANGES_MAX}")
        if spans != self._ranges:
            self._ranges = spans
            self._known = known
            self._scope_changed = True
            self.listed = False
            self._woken.set()

    def refresh_soon(self) -> None:
        """List again now."""
        self._stale = True
        self._woken.set()

    async def run(self) -> None:
        """Follow until cancelled. Errors of the store are told and outlived; any other error is raised."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._round()
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

    async def _round(self) -> None:
        """List, and watch until the ranges change or an error comes."""
        self._woken.clear()
        self._scope_changed = False
        if not self._ranges:
            self._take({}, self.revision, fresh=bool(self.entries))
            await self._woken.wait()
            return
        covered, self._covered = self._covered, ()
        staying = [span for span in self._ranges if _inside(span, covered)] if not self._stale else []
        from_revision, listings = NOW, self.listings
        if staying:
            after = await self._list(staying)
            if after is None:
                self._covered = covered
                return
            from_revision = after
        self._followed = self._watched = self._ranges
        if not self._scope_changed:
            await self._follow(from_revision)
        self._covered = self._followed if staying or self.listings > listings else covered

    async def _follow(self, from_revision: int) -> None:
        """Watch until the ranges change so that this needs another watch, and list now and then."""
        more = WatchExtension()
        self._beginning = _WatchStart() if from_revision == NOW else None
        watching = asyncio.create_task(self._watch(self._watched, from_revision, more), name="mirror")
        watching.add_done_callback(lambda _: self._woken.set())
        try:
            if from_revision == NOW and (await self._list() is None or self._watch_refused(watching)):
                return
            while not self._scope_changed or await self._take_on(more):
                if not watching.done():
                    await self._idle()
                if watching.done():
                    watching.result()  # raises
                if not self._scope_changed:
                    self._woken.clear()
                    await self._list()
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            self._beginning = None
            if not self._scope_changed and not self._stale:
                self._woken.clear()  # That was the end of the watch: nobody asks for a listing.

    def _watch_refused(self, watching: asyncio.Task[None]) -> bool:
        """Tell whether the watch was refused where the listing was answered, by another server or with another token.

        Then a watch that begins where the listing ended is all that is missing.
        """
        begun = self._beginning is None or self._beginning.stood_at is not None
        return not begun and watching.done() and isinstance(watching.exception(), StoreError)

    async def _take_on(self, more: WatchExtension) -> bool:
        """Go on with the watch that runs although the ranges have changed; False if that cannot be."""
        wanted, watched = self._ranges, self._watched
        staying = [span for span in wanted if _inside(span, self._followed)]
        new = [span for span in wanted if not _inside(span, watched)]
        apart = not any(span.start < other.end and other.start < span.end for span in new for other in watched)
        spare = all(span in wanted or span == KeyRange.key(span.start) for span in watched)
        unheard = any(_inside(span, watched) and not _inside(span, self._followed) for span in wanted)
        if not (staying and apart and spare) or unheard or self._stale or len(watched) + len(new) > WATCHED_MAX:
            return False
        self._woken.clear()
        self._scope_changed = False
        known = self._known
        if known is not None and new == [KeyRange.key(known.key)] == [span for span in wanted if span not in staying]:
            self._listed_from = known.mod_revision + 1
            self._add({known.key: known}, staying, [(new[0], known.mod_revision)])
        elif await self._list(staying) is None:
            return True
        self._followed, self._watched = wanted, (*watched, *new)
        if new:
            await more.add(new, self._listed_from)
        return True

    async def _idle(self) -> None:
        """Wait until the watch ends, somebody asks for a listing, or one is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._relist_every_s * self._random.uniform(*RELIST_SPREAD)):
                await self._woken.wait()

    async def _list(self, staying: Sequence[KeyRange] = ()) -> int | None:
        """Read every range and make the entries fit; the picture counts as old as its oldest part.

        Those that are `staying` are not read. Returns the revision from which to watch, None if the ranges became
        others meanwhile.

        Not in one transaction: etcd 3.5.1 panics, and is gone for everybody, when a transaction that only reads is
        cancelled or runs into its deadline. One range is one moment; the proposer follows just one.
        """
        ranges, floor = self._ranges, max(self.revision, self._store.revision_seen)
        spans = [span for span in ranges if span not in staying]
        asked_for, self._stale = self._stale, False
        listings = await asyncio.gather(*map(self._store.list, spans))
        if ranges != self._ranges:
            self._stale = self._stale or asked_for
            return None  # the scope changed meanwhile; the next round lists what is wanted now
        result = Listing(
            min((listing.revision for listing in listings), default=floor),
            tuple(entry for listing in listings for entry in listing.entries),
        )
        self._listed_from = result.revision + 1
        if result.revision < floor and staying:
            return await self._list()
        if result.revision < floor:
            self.replaced += 1
            self.revision = 0
            self._graves = {}
            self._listed_at = []
            self._trouble(None)
            self.listed = True
            self.listings += 1
            self._take(_by_key(result.entries), result.revision, fresh=True)
            raise WatchLost(f"the store was replaced: revision {result.revision} after {floor}")
        listed = _by_key(result.entries)
        listed_at = [(span, listing.revision) for span, listing in zip(spans, listings, strict=True)]
        if staying:
            return self._add(listed, staying, listed_at)
        for key, held in self.entries.items():  # what the watch brought while the listing was under way
            if any(held.mod_revision > at and key in span for span, at in listed_at):
                listed[key] = held
        self._graves = {key: revision for key, revision in self._graves.items() if revision > result.revision}
        for key, revision in self._graves.items():
            if key in listed and listed[key].mod_revision < revision:
                del listed[key]
        self._trouble(None)
        self.listed = True
        self.listings += 1
        self._listed_at = listed_at
        self._take(listed, max(self.revision, result.revision), fresh=True)
        if self._beginning is not None:
            self._beginning.listed = True
            self._join_listing_and_watch(self._beginning)
        return self.revision + 1

    def _join_listing_and_watch(self, beginning: _WatchStart) -> None:
        """Go on with what the watch has brought, if nothing is missing between it and the listing; else list again."""
        if not beginning.listed or beginning.stood_at is None:
            return
        if self.revision < beginning.stood_at:
            self.refresh_soon()
            return
        self._beginning = None
        for batch in beginning.batches:
            self._apply(batch)
        if self._untold:  # The watch may be waiting for its next batch already.
            self._notify()

    def _add(
        self, listed: dict[str, KeyValue], staying: Sequence[KeyRange], listed_at: list[tuple[KeyRange, int]]
    ) -> int:
        """Put ranges that were just listed beside those that are `staying`.

        The revision stays, for only the new ranges are further. The watch sees it once more, because a watch that is
        left may have told a part of it only.
        """
        listed |= {key: held for key, held in self.entries.items() if any(key in span for span in staying)}
        self._listed_at = [old for old in self._listed_at if old[1] > self.revision] + listed_at
        self._trouble(None)
        self.listed = True
        self._take(listed, self.revision, fresh=True)
        return max(1, self.revision)

    async def _watch(self, ranges: Sequence[KeyRange], from_revision: int, more: WatchExtension) -> None:
        """Apply what comes until an error ends it."""
        coming: asyncio.Task[WatchBatch] | None = None
        async with aclosing(self._store.watch(ranges, from_revision, more)) as batches:
            try:
                self._on_watch_created(await anext(batches))
                while True:
                    if self._untold and coming is None:
                        coming = asyncio.create_task(_next(batches))
                    if coming is None:
                        self._apply(await anext(batches))
                    elif await self._wait_for_batch(coming):
                        self._apply(coming.result())
                        coming = None
                    else:
                        self._notify()
            finally:
                if coming is not None:
                    coming.cancel()
                    await asyncio.wait([coming])

    def _on_watch_created(self, first: WatchBatch) -> None:
        """The watch has begun."""
        self.standing.set()
        if self._beginning is None:
            self._apply(first)
        else:
            self._beginning.stood_at = first.revision
            self._join_listing_and_watch(self._beginning)

    async def _wait_for_batch(self, coming: asyncio.Task[WatchBatch]) -> bool:
        """Wait for the next batch, until what was applied is due to be told, if anything is; whether it came."""
        due_s = max(0.0, self._pace_until - asyncio.get_running_loop().time()) if self._untold else None
        await asyncio.wait({coming}, timeout=due_s)
        return coming.done()

    def _apply(self, batch: WatchBatch) -> None:
        """Apply changes that are newer than what is held."""
        if self._beginning is not None:
            self._beginning.batches.append(batch)
            return
        entries: dict[str, KeyValue] | None = None
        unheard = len(self._watched) > len(self._followed)
        for change in batch.changes:
            key, revision = change.entry.key, change.entry.mod_revision
            if unheard and not any(key in span for span in self._followed):
                continue
            held = (self.entries if entries is None else entries).get(key)
            if revision <= max(held.mod_revision if held else 0, self._graves.get(key, 0)):
                continue
            if self._listed_at and any(revision <= at and key in span for span, at in self._listed_at):
                continue
            entries = dict(self.entries) if entries is None else entries
            if change.deleted:
                entries.pop(key, None)
                self._graves[key] = revision
            else:
                entries[key] = change.entry
                self._graves.pop(key, None)
        self.revision = max(self.revision, batch.revision)
        if entries is None:
            return
        self.entries = MappingProxyType(entries)
        self._untold = True
        if asyncio.get_running_loop().time() >= self._pace_until:
            self._notify()

    def _notify(self) -> None:
        """Tell that the picture is another one, and work out when to tell that again."""
        self._untold = False
        clock = asyncio.get_running_loop().time
        began = clock()
        self._on_change(self)
        ended = clock()
        self._pace_until = ended + max(len(self.entries) * PACE_S, (ended - began) * PAUSES_PER_LOOK)

    def _take(self, entries: dict[str, KeyValue], revision: int, *, fresh: bool) -> None:
        """Make `entries` the picture, and tell if it is another one (or `fresh`: told in any case)."""
        differs = fresh or entries != self.entries
        self.revision = revision
        if differs:
            self.entries = MappingProxyType(entries)
            self._notify()

    def _trouble(self, error: StoreError | None) -> None:
        """Tell when the store goes away, and when it is back."""
        if self._in_trouble != (error is not None):
            self._in_trouble = error is not None
            self._on_trouble(error)


async def _next(batches: AsyncGenerator[WatchBatch, None]) -> WatchBatch:
    return await anext(batches)


def _inside(span: KeyRange, others: Iterable[KeyRange]) -> bool:
    return any(other.start <= span.start and span.end <= other.end for other in others)


def _by_key(entries: Iterable[KeyValue]) -> dict[str, KeyValue]:
    return {entry.key: entry for entry in entries}
