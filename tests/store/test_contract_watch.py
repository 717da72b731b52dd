"""What every store promises about watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from elastic.core.kv import NOW, Delete, KeyChange, KeyRange, Put, WatchBatch
from elastic.errors import Compacted, StoreError
from elastic.store.protocol import Store
from tests.support.store_bench import Bench, on


async def changes(watch: AsyncGenerator[WatchBatch, None], count: int) -> list[KeyChange]:
    """The next `count` changes, whatever batches they come in; checks that revisions never go back."""
    found: list[KeyChange] = []
    revision = 0
    while len(found) < count:
        batch = await anext(watch)
        assert batch.revision >= revision
        assert all(change.entry.mod_revision == batch.revision for change in batch.changes)
        revision = batch.revision
        found += batch.changes
    return found


def test_the_first_batch_is_empty_and_says_that_the_watch_stands(bench: Bench) -> None:
    async def story(store: Store) -> None:
        now = (await store.list(KeyRange.prefix(bench.prefix))).revision
        watch = store.watch([KeyRange.prefix(bench.prefix)], now + 1)
        assert await anext(watch) == WatchBatch(now, ())
        await watch.aclose()

    on(bench, story)


def test_changes_come_in_order_with_their_revisions_and_deletions_with_theirs(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a", bench.prefix + "b"
        now = (await store.list(KeyRange.prefix(bench.prefix))).revision
        watch = store.watch([KeyRange.prefix(bench.prefix)], now + 1)
        await anext(watch)
        await store.txn((), [Put(b, b"1"), Put(a, b"2")])
        await store.txn((), [Put(bench.prefix[:-1], b"elsewhere")])
        await store.txn((), [Put(a, b"3")])
        await store.txn((), [Delete(KeyRange.prefix(bench.prefix))])
        first, second, third = [await anext(watch) for _ in range(3)]
        assert (first.revision, second.revision, third.revision) == (now + 1, now + 3, now + 4)
        assert [(c.entry.key, c.entry.value) for c in first.changes] == [(b, b"1"), (a, b"2")]
        assert [(c.entry.value, c.entry.create_revision) for c in second.changes] == [(b"3", now + 1)]
        assert [(c.entry.key, c.deleted, c.entry.mod_revision) for c in third.changes] == [
            (a, True, now + 4),
            (b, True, now + 4),
        ]
        assert all(c.entry.value == b"" for c in third.changes)
        assert store.revision_seen >= now + 4
        await watch.aclose()

    on(bench, story)


def test_a_watch_from_now_misses_nothing_after_the_revision_of_its_first_batch(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a", bench.prefix + "b"
        before = await store.txn((), [Put(a, b"0"), Put(b, b"0")])
        watch = store.watch([KeyRange.key(a), KeyRange.key(b)], NOW)
        first = await anext(watch)
        assert first == WatchBatch(before.revision, ())
        for number in range(1, 4):
            await store.txn((), [Put(b if number == 2 else a, str(number).encode())])
        assert [(c.entry.key, c.entry.value) for c in await changes(watch, 3)] == [(a, b"1"), (b, b"2"), (a, b"3")]
        await watch.aclose()

    on(bench, story)


def test_a_watch_from_the_past_begins_there(bench: Bench) -> None:
    async def story(store: Store) -> None:
        key = bench.prefix + "a"
        revisions = [(await store.txn((), [Put(key, str(number).encode())])).revision for number in range(5)]
        watch = store.watch([KeyRange.key(key)], revisions[2])
        assert [c.entry.value for c in await changes(watch, 3)] == [b"2", b"3", b"4"]
        await store.txn((), [Put(key, b"5")])
        assert [c.entry.value for c in await changes(watch, 1)] == [b"5"]
        await watch.aclose()

    on(bench, story)


def test_a_change_in_several_ranges_is_told_once_and_in_order(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a/", bench.prefix + "b/"
        now = (await store.list(KeyRange.prefix(bench.prefix))).revision
        watch = store.watch(
            [KeyRange.prefix(b), KeyRange.prefix(a), KeyRange.key(a + "1"), KeyRange.key("/other")], now + 1
        )
        await anext(watch)
        for number in range(20):
            await store.txn((), [Put(f"{a}{number}", b""), Put(f"{b}{number}", b"")])
        found = await changes(watch, 40)
        assert [c.entry.mod_revision for c in found] == [now + 1 + number // 2 for number in range(40)]
        assert len({c.entry.key for c in found}) == 40
        await watch.aclose()

    on(bench, story)


def test_what_another_client_writes_is_heard(bench: Bench) -> None:
    async def story(store: Store) -> None:
        other = bench.client()
        now = (await store.list(KeyRange.prefix(bench.prefix))).revision
        watch = store.watch([KeyRange.prefix(bench.prefix)], now + 1)
        await anext(watch)
        hearing = asyncio.create_task(changes(watch, 1))
        lease = await other.grant(60)
        await other.txn((), [Put(bench.prefix + "a", b"", lease.id)])
        assert [c.entry.lease for c in await hearing] == [lease.id]
        await other.revoke(lease.id)
        assert [c.deleted for c in await changes(watch, 1)] == [True]
        await watch.aclose()
        await other.close()

    on(bench, story)


def test_a_watch_from_a_revision_that_was_compacted_says_from_where_it_can_begin(bench: Bench) -> None:
    async def story(store: Store) -> None:
        key = bench.prefix + "a"
        revisions = [(await store.txn((), [Put(key, b"")])).revision for _ in range(5)]
        await bench.compact(store, revisions[3])
        for asked in (revisions[0], revisions[2]):
            with pytest.raises(Compacted) as caught:
                async for _ in store.watch([KeyRange.key(key)], asked):
                    pass
            assert caught.value.revision == revisions[3]
        watch = store.watch([KeyRange.key(key)], revisions[3])
        assert [c.entry.mod_revision for c in await changes(watch, 2)] == revisions[3:]
        await watch.aclose()

    on(bench, story)


def test_a_compaction_does_not_disturb_a_watch_that_is_up_to_date(bench: Bench) -> None:
    async def story(store: Store) -> None:
        key = bench.prefix + "a"
        now = (await store.txn((), [Put(key, b"")])).revision
        watch = store.watch([KeyRange.key(key)], now + 1)
        await anext(watch)
        hearing = asyncio.create_task(changes(watch, 1))
        await asyncio.sleep(0)
        await bench.compact(store, now)
        put = await store.txn((), [Put(key, b"1")])
        assert [c.entry.mod_revision for c in await hearing] == [put.revision]
        await watch.aclose()

    on(bench, story)


def test_closing_the_client_ends_its_watches_with_an_error(bench: Bench) -> None:
    async def story(store: Store) -> None:
        now = (await store.list(KeyRange.prefix(bench.prefix))).revision
        watch = store.watch([KeyRange.prefix(bench.prefix)], now + 1)
        await anext(watch)
        hearing = asyncio.create_task(changes(watch, 1))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreError):
            await hearing

    on(bench, story)


def test_a_cancelled_reader_is_cancelled_and_nothing_else(bench: Bench) -> None:
    async def story(store: Store) -> None:
        now = (await store.list(KeyRange.prefix(bench.prefix))).revision
        watch = store.watch([KeyRange.prefix(bench.prefix)], now + 1)
        await anext(watch)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(watch)
        await store.list(KeyRange.prefix(bench.prefix))

    on(bench, story)


def test_a_watch_from_before_the_first_revision_is_a_mistake_of_the_caller(bench: Bench) -> None:
    async def story(store: Store) -> None:
        with pytest.raises(ValueError, match="the first is 1"):
            await anext(store.watch([KeyRange.prefix(bench.prefix)], -1))

    on(bench, story)
