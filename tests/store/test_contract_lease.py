"""What every store promises about leases."""

from __future__ import annotations

import asyncio
import time

from elastic.core.kv import Delete, KeyRange, Put
from elastic.store.protocol import Store
from tests.support.store_bench import Bench, on


async def until_gone(store: Store, key: str, from_revision: int) -> float:
    """Wait until `key` is deleted; returns when that was."""
    async for batch in store.watch([KeyRange.key(key)], from_revision):
        if any(change.deleted for change in batch.changes):
            break
    return time.monotonic()


def test_a_lease_that_is_not_refreshed_ends_and_takes_its_keys_along(bench: Bench) -> None:
    async def story(store: Store) -> None:
        mine, other = bench.prefix + "mine", bench.prefix + "other"
        began = time.monotonic()
        lease = await store.grant(bench.lease_s)
        assert lease.ttl_s >= bench.lease_s
        put = await store.txn((), [Put(mine, b"", lease.id), Put(other, b"")])
        gone = await until_gone(store, mine, put.revision + 1)
        assert gone - began >= lease.ttl_s - 0.05
        assert [entry.key for entry in (await store.list(KeyRange.prefix(bench.prefix))).entries] == [other]
        assert (await store.refresh(lease.id)).ttl_s == 0.0

    on(bench, story)


def test_a_refresh_gives_the_full_time_again(bench: Bench) -> None:
    async def story(store: Store) -> None:
        key = bench.prefix + "a"
        lease = await store.grant(bench.lease_s)
        put = await store.txn((), [Put(key, b"", lease.id)])
        await asyncio.sleep(lease.ttl_s / 2)
        refreshed = time.monotonic()
        assert (await store.refresh(lease.id)).ttl_s == lease.ttl_s
        assert await until_gone(store, key, put.revision + 1) - refreshed >= lease.ttl_s - 0.05

    on(bench, story)


def test_a_lease_that_never_was_is_lost(bench: Bench) -> None:
    async def story(store: Store) -> None:
        assert (await store.refresh(987654321)).ttl_s == 0.0

    on(bench, story)


def test_revoking_deletes_the_keys_in_one_revision_and_twice_is_no_error(bench: Bench) -> None:
    async def story(store: Store) -> None:
        lease = await store.grant(60)
        put = await store.txn((), [Put(bench.prefix + name, b"", lease.id) for name in "ab"])
        (entry, _) = (await store.list(KeyRange.prefix(bench.prefix))).entries
        assert entry.lease == lease.id
        await store.revoke(lease.id)
        await store.revoke(lease.id)
        listing = await store.list(KeyRange.prefix(bench.prefix))
        assert (listing.entries, listing.revision) == ((), put.revision + 1)
        assert (await store.refresh(lease.id)).ttl_s == 0.0

    on(bench, story)


def test_a_put_without_the_lease_detaches_the_key(bench: Bench) -> None:
    async def story(store: Store) -> None:
        first, second = await store.grant(60), await store.grant(60)
        kept, moved, gone = (bench.prefix + name for name in ("kept", "moved", "gone"))
        await store.txn((), [Put(key, b"", first.id) for key in (kept, moved, gone)])
        await store.txn((), [Put(kept, b""), Put(moved, b"", second.id)])
        await store.revoke(first.id)
        assert [entry.key for entry in (await store.list(KeyRange.prefix(bench.prefix))).entries] == [kept, moved]
        await store.revoke(second.id)
        assert [entry.key for entry in (await store.list(KeyRange.prefix(bench.prefix))).entries] == [kept]

    on(bench, story)


def test_a_key_that_was_deleted_no_longer_hangs_on_its_lease(bench: Bench) -> None:
    async def story(store: Store) -> None:
        lease = await store.grant(60)
        key = bench.prefix + "a"
        await store.txn((), [Put(key, b"", lease.id)])
        await store.txn((), [Delete(KeyRange.key(key))])
        await store.txn((), [Put(key, b"again")])
        await store.revoke(lease.id)
        assert len((await store.list(KeyRange.key(key))).entries) == 1

    on(bench, story)
