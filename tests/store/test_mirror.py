"""A mirror is what the listing is, and never goes back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence

import pytest

from elastic.core.kv import NOW, Delete, KeyRange, Listing, Put, WatchBatch
from elastic.errors import StoreUnavailable, WatchLost
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from elastic.store.mirror import Mirror
from elastic.store.protocol import Store
from tests.support.mirror_harness import Watched
from tests.support.store_bench import Bench, on


class FaultyStore(MemoryStore):
    """A store that can be out of reach, and whose watch can be deaf, repeat what it said, begin late, or be refused.

    It counts listings, and keeps from where watches were to tell.
    """

    out_of_reach = False
    deaf = False
    repeats = False
    refused = 0
    """So many watches end at once."""
    begin: asyncio.Event | None = None
    """Watches begin when it is set."""
    ask: asyncio.Event | None = None
    """Listings of keys from "/b" on are asked for when it is set."""
    arrive: asyncio.Event | None = None
    """Listings that were answered arrive when it is set."""
    tell: asyncio.Event | None = None
    """Deletions are told when it is set."""

    def __init__(self) -> None:
        super().__init__(MemoryCore(), time.monotonic)
        self.listings = 0
        self.watched: list[int] = []
        self.asked = asyncio.Event()
        """Set when a watch was asked for."""
        self.answered = asyncio.Event()
        """Set when a listing was answered."""
        self.standing = asyncio.Event()
        """Set when a watch has begun, and the reader waits for the first change."""
        self.taken = asyncio.Event()
        """Set when a change was told, and the reader waits for the next."""

    async def list(
        self,
        range: KeyRange,  # noqa: A002
        *,
        keys_only: bool = False,
        limit: int = 0,
    ) -> Listing:
        if self.out_of_reach:
            raise StoreUnavailable("nobody is there")
        self.listings += 1
        if self.ask is not None and range.start >= "/b":
            await self.ask.wait()
        listing = await super().list(range, keys_only=keys_only, limit=limit)
        self.answered.set()
        if self.arrive is not None:
            await self.arrive.wait()
        return listing

    async def watch(self, ranges: Sequence[KeyRange], from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        self.watched.append(from_revision)
        self.asked.set()
        if self.refused:
            self.refused -= 1
            raise WatchLost("nobody watches here")
        if self.begin is not None:
            await self.begin.wait()
        told: list[WatchBatch] = []
        async for batch in super().watch(ranges, from_revision):
            if self.deaf:
                continue
            told.append(batch)
            if self.tell is not None and any(change.deleted for change in batch.changes):
                await self.tell.wait()
            for each in told if self.repeats else [batch]:
                yield each
            self.standing.set()
            if batch.changes:
                self.taken.set()


def test_a_mirror_shows_what_is_there_and_then_every_change(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a", bench.prefix + "b"
        await store.txn((), [Put(a, b"1")])
        async with Watched(store, bench.prefix) as watched:
            await watched.until(lambda: watched.values == {a: b"1"})
            snapshot = watched.mirror.entries
            put = await store.txn((), [Put(a, b"2"), Put(b, b"1")])
            await watched.until(lambda: watched.values == {a: b"2", b: b"1"})
            assert watched.mirror.revision >= put.revision
            assert snapshot[a].value == b"1"
            await store.txn((), [Delete(KeyRange.key(a))])
            await watched.until(lambda: watched.values == {b: b"1"})
            assert (watched.replaced, watched.outages) == (0, [])

    on(bench, story)


@pytest.mark.parametrize("meanwhile", [True, False], ids=["something", "nothing"])
def test_what_came_between_the_listing_and_the_beginning_of_the_watch_is_listed_once_more(meanwhile: bool) -> None:
    """No watch begins in the past, of which etcd tells up to 100 ms late; and what it tells waits for that listing."""

    async def story() -> None:
        store = FaultyStore()
        store.begin = asyncio.Event()
        await store.txn((), [Put("/a", b"1"), Put("/b", b"1")])
        async with Watched(store, "/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            if meanwhile:
                await store.txn((), [Put("/a", b"2"), Delete(KeyRange.key("/b"))])
            store.begin.set()
            await store.standing.wait()
            await store.txn((), [Put("/c", b"3")])
            expected = {"/a": b"2", "/c": b"3"} if meanwhile else {"/a": b"1", "/b": b"1", "/c": b"3"}
            await watched.until(lambda: "/c" in watched.values)
            assert watched.values == expected
            assert (store.watched, store.listings, watched.mirror.listings) == ([NOW], *[1 + meanwhile] * 2)
            await store.txn((), [Put("/b", b"4")])
            await watched.until(lambda: watched.values == {**expected, "/b": b"4"})

    asyncio.run(story())


def test_what_the_watch_told_before_the_first_listing_arrived_is_told_with_it() -> None:
    async def story() -> None:
        store = FaultyStore()
        store.arrive = asyncio.Event()
        await store.txn((), [Put("/a", b"1")])
        async with Watched(store, "/") as watched:
            await store.answered.wait()
            await store.txn((), [Put("/b", b"2")])
            await store.taken.wait()
            store.arrive.set()
            await watched.until(lambda: watched.shown == {"/a": b"1", "/b": b"2"})

    asyncio.run(story())


def test_a_watch_that_is_refused_where_the_listing_is_answered_begins_again_at_once_where_that_ended() -> None:
    """Another server answered, or a new token was fetched; nothing is listed again, and nobody hears of trouble."""

    async def story() -> None:
        store = FaultyStore()
        store.refused = 1
        put = await store.txn((), [Put("/a", b"1")])
        async with Watched(store, "/") as watched:
            await store.standing.wait()
            await store.txn((), [Put("/a", b"2")])
            await watched.until(lambda: watched.values == {"/a": b"2"})
            assert (store.watched, store.listings, watched.outages) == ([NOW, put.revision + 1], 1, [])

    asyncio.run(story())


def test_a_key_that_was_put_and_deleted_between_the_listings_of_two_ranges_does_not_come_back() -> None:
    async def story() -> None:
        store = FaultyStore()
        await store.txn((), [Put("/a/1", b"1")])
        async with Watched(store, "/a/", "/b/") as watched:
            await store.standing.wait()
            store.ask, store.tell = asyncio.Event(), asyncio.Event()
            store.answered.clear()
            watched.mirror.refresh_soon()
            await store.answered.wait()
            await store.txn((), [Put("/b/k", b"1")])
            await watched.until(lambda: "/b/k" in watched.values)
            await store.txn((), [Delete(KeyRange.key("/b/k"))])
            store.ask.set()
            await watched.until(lambda: watched.mirror.listings == 2)
            assert watched.values == {"/a/1": b"1"}
            store.tell.set()
            await store.txn((), [Put("/a/2", b"2")])
            await watched.until(lambda: "/a/2" in watched.values)
            assert watched.values == {"/a/1": b"1", "/a/2": b"2"}

    asyncio.run(story())


def test_a_later_listing_does_not_undo_what_the_watch_told_while_it_was_on_its_way() -> None:
    async def story() -> None:
        store = FaultyStore()
        await store.txn((), [Put("/a", b"1"), Put("/b", b"1"), Put("/c", b"1")])
        async with Watched(store, "/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            await store.standing.wait()
            store.arrive = asyncio.Event()
            store.answered.clear()
            watched.mirror.refresh_soon()
            await store.answered.wait()
            await store.txn((), [Put("/a", b"2"), Delete(KeyRange.key("/b"))])
            await store.txn((), [Delete(KeyRange.key("/a"))])
            last = await store.txn((), [Put("/a", b"3")])
            await watched.until(lambda: watched.values == {"/a": b"3", "/c": b"1"})
            store.arrive.set()
            await watched.until(lambda: watched.mirror.listings == 2)
            assert (watched.values, watched.mirror.revision) == ({"/a": b"3", "/c": b"1"}, last.revision)

    asyncio.run(story())


def test_what_happens_to_a_key_while_it_is_listed_to_be_followed_again_is_not_missed() -> None:
    async def story() -> None:
        store = FaultyStore()
        await store.txn((), [Put("/a/1", b"1"), Put("/k", b"1")])
        both = (KeyRange.prefix("/a/"), KeyRange.key("/k"))
        async with Watched(store, "/a/") as watched:
            await store.standing.wait()
            watched.mirror.follow(both)
            await watched.until(lambda: "/k" in watched.values)
            watched.mirror.follow(both[:1])
            await watched.until(lambda: "/k" not in watched.values)
            store.arrive = asyncio.Event()
            store.answered.clear()
            watched.mirror.follow(both)
            await store.answered.wait()
            await store.txn((), [Put("/k", b"2"), Put("/a/2", b"2")])
            store.arrive.set()
            await watched.until(lambda: len(watched.values) == 3)
            assert watched.values == {"/a/1": b"1", "/a/2": b"2", "/k": b"2"}

    asyncio.run(story())


def test_when_the_scope_changes_before_the_first_listing_only_the_new_one_is_told() -> None:
    async def story() -> None:
        store = FaultyStore()
        store.begin = asyncio.Event()
        await store.txn((), [Put("/a/1", b"1"), Put("/b/1", b"1")])
        async with Watched(store, "/a/") as watched:
            await store.asked.wait()
            watched.mirror.follow([KeyRange.prefix("/b/")])
            store.begin.set()
            await watched.until(lambda: bool(watched.values))
            assert watched.values == {"/b/1": b"1"}
            await store.txn((), [Put("/a/2", b"2"), Put("/b/2", b"2")])
            await watched.until(lambda: watched.values == {"/b/1": b"1", "/b/2": b"2"})

    asyncio.run(story())


def test_an_empty_scope_is_told_too(bench: Bench) -> None:
    async def story(store: Store) -> None:
        async with Watched(store, bench.prefix) as watched:
            await watched.until(lambda: watched.mirror.listed)
            assert (watched.told, watched.values) == (1, {})

    on(bench, story)


def test_a_change_of_scope_keeps_the_old_picture_until_the_new_one_is_there(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b, c = (f"{bench.prefix}{name}/x" for name in "abc")
        await store.txn((), [Put(key, b"") for key in (a, b, c)])
        async with Watched(store, bench.prefix + "a/", bench.prefix + "b/") as watched:
            await watched.until(lambda: set(watched.values) == {a, b})
            watched.mirror.follow([KeyRange.prefix(bench.prefix + "b/"), KeyRange.prefix(bench.prefix + "c/")])
            assert set(watched.values) == {a, b}
            assert not watched.mirror.listed
            await watched.until(lambda: watched.mirror.listed)
            assert set(watched.values) == {b, c}
            await store.txn((), [Put(a, b"unseen"), Put(c, b"seen")])
            await watched.until(lambda: watched.values == {b: b"", c: b"seen"})
            watched.mirror.follow([])
            await watched.until(lambda: not watched.values)

    on(bench, story)


def test_a_listing_that_was_asked_for_is_made_although_the_scope_changes_meanwhile() -> None:
    class Slow(FaultyStore):
        begun = asyncio.Event()
        let_go = asyncio.Event()

        async def list(
            self,
            range: KeyRange,  # noqa: A002
            *,
            keys_only: bool = False,
            limit: int = 0,
        ) -> Listing:
            self.begun.set()
            await self.let_go.wait()
            return await super().list(range)

    async def story() -> None:
        store = Slow()
        store.let_go.set()
        async with Watched(store, "a/") as watched:
            await watched.until(lambda: watched.mirror.listings == 1)
            store.begun.clear()
            store.let_go.clear()
            watched.mirror.refresh_soon()
            await store.begun.wait()
            watched.mirror.follow([KeyRange.prefix("a/"), KeyRange.prefix("b/")])
            store.let_go.set()
            await watched.until(lambda: watched.mirror.listings == 2)

    asyncio.run(story())


def test_after_any_operations_and_scope_changes_the_mirror_is_the_listing(bench: Bench) -> None:
    async def story(store: Store) -> None:
        chance = random.Random(bench.prefix)
        prefixes = [f"{bench.prefix}{name}/" for name in "abc"]
        keys = [f"{prefix}{number}" for prefix in prefixes for number in range(4)]
        leases: list[int] = []
        scope = prefixes
        async with Watched(store, *prefixes, relist_every_s=0.05) as watched:
            for step in range(300):
                match chance.randrange(12):
                    case 0 | 1:
                        await store.txn((), [Delete(KeyRange.key(chance.choice(keys)))])
                    case 2:
                        await store.txn((), [Delete(KeyRange.prefix(chance.choice(prefixes)))])
                    case 3:
                        leases.append((await store.grant(60)).id)
                        puts = [Put(key, b"leased", leases[-1]) for key in chance.sample(keys, 3)]
                        await store.txn((), puts)
                    case 4 if leases:
                        await store.revoke(leases.pop(0))
                    case 5 if step % 3 == 0:
                        scope = chance.sample(prefixes, chance.randint(1, 3))
                        watched.mirror.follow([KeyRange.prefix(prefix) for prefix in scope])
                    case 6:
                        watched.mirror.refresh_soon()
                        await asyncio.sleep(0)
                    case _:
                        await store.txn((), [Put(key, str(step).encode()) for key in chance.sample(keys, 2)])
            listed = [await store.list(KeyRange.prefix(prefix)) for prefix in scope]
            truth = {entry.key: entry for listing in listed for entry in listing.entries}
            await watched.until(lambda: dict(watched.mirror.entries) == truth)
            assert watched.replaced == 0
            for lease in leases:
                await store.revoke(lease)

    on(bench, story)


def test_a_compaction_makes_it_list_again(bench: Bench) -> None:
    async def story(store: Store) -> None:
        key = bench.prefix + "a"
        await store.txn((), [Put(key, b"1")])
        async with Watched(store, bench.prefix) as watched:
            await watched.until(lambda: watched.values == {key: b"1"})
            put = await store.txn((), [Put(key, b"2")])
            await bench.compact(store, put.revision)
            await store.txn((), [Put(key, b"3")])
            await watched.until(lambda: watched.values == {key: b"3"})

    on(bench, story)


def test_a_store_that_goes_away_is_told_once_and_so_is_its_return() -> None:
    async def run() -> None:
        store = FaultyStore()
        store.out_of_reach = True
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: bool(watched.outages))
            await asyncio.sleep(0.6)  # at least one more listing fails
            assert [str(error) for error in watched.outages] == ["nobody is there"]
            store.out_of_reach = False
            await watched.until(lambda: watched.mirror.listed)
            assert watched.outages[1:] == [None]

    asyncio.run(run())


def test_a_deaf_watch_is_made_good_by_the_next_listing() -> None:
    async def run() -> None:
        store = FaultyStore()
        async with Watched(store, "/j/", relist_every_s=0.1) as watched:
            await watched.until(lambda: watched.mirror.listed)
            store.deaf = True
            await store.txn((), [Put("/j/a", b"")])
            await watched.until(lambda: set(watched.values) == {"/j/a"})

    asyncio.run(run())


def test_asking_for_a_listing_does_not_wait_for_the_next_one_that_is_due() -> None:
    async def run() -> None:
        store = FaultyStore()
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            store.deaf = True
            await store.txn((), [Put("/j/a", b"")])
            watched.mirror.refresh_soon()
            await watched.until(lambda: set(watched.values) == {"/j/a"})

    asyncio.run(run())


def test_repeated_events_never_bring_back_what_was_overwritten_or_deleted() -> None:
    async def run() -> None:
        store = FaultyStore()
        store.repeats = True
        history: list[dict[str, bytes]] = []
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            for number in range(3):
                await store.txn((), [Put("/j/a", str(number).encode()), Put("/j/b", b"")])
                await watched.until(lambda: watched.values.get("/j/b") is not None)
                await store.txn((), [Delete(KeyRange.key("/j/b"))])
                await watched.until(lambda: "/j/b" not in watched.values)
                history.append(watched.values)
                told = watched.told
                await asyncio.sleep(0)
                assert watched.told == told
        assert history == [{"/j/a": b"0"}, {"/j/a": b"1"}, {"/j/a": b"2"}]

    asyncio.run(run())


@pytest.mark.parametrize("noticed_by_another_call", [False, True])
def test_a_store_that_came_back_empty_is_noticed_and_taken_whole(noticed_by_another_call: bool) -> None:
    async def run() -> None:
        store = FaultyStore()
        for number in range(5):
            await store.txn((), [Put("/j/a", str(number).encode()), Put("/j/b", b"")])
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.values == {"/j/a": b"4", "/j/b": b""})
            store.replace(MemoryCore())
            if noticed_by_another_call:
                await store.txn((), [Put("/j/a", b"new")])
            await watched.until(lambda: watched.replaced == 1)
            await store.txn((), [Put("/j/a", b"newer")])
            await watched.until(lambda: watched.values == {"/j/a": b"newer"})
            assert watched.replaced == 1
            assert watched.mirror.revision == store.core.revision

    asyncio.run(run())


def test_a_mirror_that_is_cancelled_in_the_moment_in_which_a_listing_fails_ends() -> None:
    class Failing(FaultyStore):
        fails = asyncio.Event()

        async def list(
            self,
            range: KeyRange,  # noqa: A002
            *,
            keys_only: bool = False,
            limit: int = 0,
        ) -> Listing:
            self.asked.set()
            await (self.fails if range.start == "/a/" else asyncio.Event()).wait()
            raise StoreUnavailable("nobody is there")

    async def story() -> None:
        store = Failing()
        mirror = Mirror(store, on_change=lambda _: None, on_outage=lambda _: None)
        mirror.follow([KeyRange.prefix("/a/"), KeyRange.prefix("/b/")])
        following = asyncio.create_task(mirror.run())
        await store.asked.wait()
        await asyncio.sleep(0)
        store.fails.set()
        await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait([following], timeout=2)
        assert following.cancelled()

    asyncio.run(story())


def test_mirrors_that_are_ended_in_the_middle_of_a_listing_do_not_harm_the_store(bench: Bench) -> None:
    """etcd 3.5.1 panics when a transaction that only reads is cancelled (etcd issue 14110)."""

    async def story(store: Store) -> None:
        keys = [f"{bench.prefix}{number:03d}" for number in range(100)]
        await store.txn((), [Put(key, b"x" * 5_000) for key in keys])
        ranges = [KeyRange.key(key) for key in keys[::2]]
        for turns in range(200):
            mirror = Mirror(store, on_change=lambda _: None, on_outage=lambda _: None)
            mirror.follow(ranges)
            following = asyncio.create_task(mirror.run())
            for _ in range(turns % 40):
                await asyncio.sleep(0)
            following.cancel()
            await asyncio.wait([following])
        assert len((await store.list(KeyRange.prefix(bench.prefix))).entries) == 100

    on(bench, story)


def test_when_a_range_is_followed_besides_and_no_longer_nothing_of_the_others_is_missed() -> None:
    async def story() -> None:
        store = FaultyStore()
        await store.txn((), [Put("/a/1", b"1"), Put("/b/1", b"1")])
        async with Watched(store, "/a/") as watched:
            await watched.until(lambda: watched.values == {"/a/1": b"1"})
            watched.mirror.follow([KeyRange.prefix("/a/"), KeyRange.key("/b/1")])
            await store.txn((), [Put("/a/2", b"2"), Put("/b/1", b"2")])
            await watched.until(lambda: watched.values == {"/a/1": b"1", "/a/2": b"2", "/b/1": b"2"})
            await store.txn((), [Delete(KeyRange.key("/a/1")), Delete(KeyRange.key("/b/1"))])
            await watched.until(lambda: watched.values == {"/a/2": b"2"})
            watched.mirror.follow([KeyRange.prefix("/a/")])
            await store.txn((), [Put("/a/3", b"3")])
            await watched.until(lambda: watched.values == {"/a/2": b"2", "/a/3": b"3"})

    asyncio.run(story())


class Noting(Watched):
    """Notes of every picture how old it is and whether /a/2 is in it."""

    def __init__(self, store: Store, *prefixes: str) -> None:
        self.seen: list[tuple[int, bool]] = []
        super().__init__(store, *prefixes)

    def _on_change(self, mirror: Mirror) -> None:
        self.seen.append((mirror.revision, "/a/2" in mirror.entries))
        super()._on_change(mirror)


def test_a_picture_is_never_newer_than_any_range_in_it() -> None:
    async def story() -> None:
        store = FaultyStore()
        await store.txn((), [Put("/a/1", b"1")])
        watched = Noting(store, "/a/")
        async with watched:
            await watched.until(lambda: watched.values == {"/a/1": b"1"})
            watched.mirror.follow([KeyRange.prefix("/a/"), KeyRange.prefix("/b/")])
            put = await store.txn((), [Put("/a/2", b"2")])
            await store.txn((), [Put("/b/1", b"1")])
            await watched.until(lambda: len(watched.values) == 3)
            assert all(has or revision < put.revision for revision, has in watched.seen)

    asyncio.run(story())


def test_a_burst_of_changes_to_a_large_picture_is_told_a_few_times() -> None:
    async def story() -> None:
        store = FaultyStore()
        for part in range(20):
            await store.txn((), [Put(f"/a/{part}/{n}", b"") for n in range(100)])
        async with Watched(store, "/a/") as watched:
            await watched.until(lambda: len(watched.values) == 2000)
            before = watched.told
            for n in range(200):
                await store.txn((), [Put("/a/last", b"%d" % n)])
            await watched.until(lambda: watched.values.get("/a/last") == b"199")
            assert watched.told - before < 100

    asyncio.run(story())


def test_when_a_burst_was_told_nothing_is_told_until_the_next_change() -> None:
    async def story() -> None:
        store = FaultyStore()
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            for number in range(20):
                await store.txn((), [Put("/j/a", str(number).encode())])
            await watched.until(lambda: watched.values == {"/j/a": b"19"})
            await asyncio.sleep(0.05)  # What was put off is told by now.
            told = watched.told
            await asyncio.sleep(0.05)
            assert watched.told == told

    asyncio.run(story())
