"""What every store promises about listings, compares and transactions."""

from __future__ import annotations

import pytest

from elastic.core.kv import OPERATIONS_MAX, Compare, Delete, KeyRange, Put
from elastic.errors import StoreError
from elastic.store.protocol import Store
from tests.support.store_bench import Bench, on


def test_each_writing_transaction_makes_one_revision(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a", bench.prefix + "b"
        first = await store.txn((), [Put(a, b"1"), Put(b, b"2")])
        second = await store.txn((), [Put(a, b"3")])
        assert second.revision == first.revision + 1
        entry_a, entry_b = (await store.list(KeyRange.prefix(bench.prefix))).entries
        assert (entry_a.value, entry_a.create_revision, entry_a.mod_revision) == (b"3", first.revision, second.revision)
        assert (entry_b.value, entry_b.create_revision, entry_b.mod_revision) == (b"2", first.revision, first.revision)
        assert store.revision_seen == second.revision

    on(bench, story)


def test_a_delete_of_nothing_makes_no_revision(bench: Bench) -> None:
    async def story(store: Store) -> None:
        before = await store.txn((), [Put(bench.prefix + "a", b"")])
        after = await store.txn((), [Delete(KeyRange.prefix(bench.prefix + "none/"))])
        assert (after.succeeded, after.revision) == (True, before.revision)

    on(bench, story)


def test_a_key_that_was_deleted_begins_a_new_life(bench: Bench) -> None:
    async def story(store: Store) -> None:
        key = bench.prefix + "a"
        await store.txn((), [Put(key, b"1")])
        await store.txn((), [Delete(KeyRange.key(key))])
        again = await store.txn((), [Put(key, b"2")])
        (entry,) = (await store.list(KeyRange.key(key))).entries
        assert entry.create_revision == entry.mod_revision == again.revision

    on(bench, story)


def test_compares_of_one_key_hold_exactly_when_they_should(bench: Bench) -> None:
    async def story(store: Store) -> None:
        key, absent = bench.prefix + "a", bench.prefix + "z"
        created = (await store.txn((), [Put(key, b"1")])).revision
        changed = (await store.txn((), [Put(key, b"2")])).revision
        cases = {
            Compare.absent(absent): True,
            Compare.absent(key): False,
            Compare.created(key, created): True,
            Compare.created(key, changed): False,
            Compare.modified(key, changed): True,
            Compare.modified(key, created): False,
            Compare.modified(absent, 0): True,
            Compare.equals(key, b"2"): True,
            Compare.equals(key, b"1"): False,
            Compare.equals(absent, b""): False,
        }
        for compare, holds in cases.items():
            assert (await store.txn([compare], ())).succeeded is holds, compare

    on(bench, story)


def test_an_empty_prefix_is_one_without_any_key(bench: Bench) -> None:
    async def story(store: Store) -> None:
        j1, j10 = bench.prefix + "j1/", bench.prefix + "j10/"
        await store.txn((), [Put(j10 + "a", b"")])
        assert (await store.txn([Compare.empty(j1)], [Put(j1 + "x", b"")])).succeeded
        assert not (await store.txn([Compare.empty(j1)], ())).succeeded
        assert not (await store.txn([Compare.empty(j10)], ())).succeeded

    on(bench, story)


def test_one_compare_that_fails_leaves_everything_as_it_was(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a", bench.prefix + "b"
        before = await store.txn((), [Put(a, b"1")])
        result = await store.txn(
            [Compare.equals(a, b"1"), Compare.equals(b, b"1")],
            [Put(b, b"then"), Delete(KeyRange.key(a))],
        )
        assert (result.succeeded, result.revision) == (False, before.revision)
        listing = await store.list(KeyRange.prefix(bench.prefix))
        assert [(entry.key, entry.value) for entry in listing.entries] == [(a, b"1")]

    on(bench, story)


@pytest.mark.parametrize("second", ["put", "delete"])
def test_a_transaction_that_writes_a_key_twice_is_refused_whole(bench: Bench, second: str) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a", bench.prefix + "b"
        again = Put(a, b"2") if second == "put" else Delete(KeyRange.prefix(bench.prefix))
        with pytest.raises(StoreError, match="twice"):
            await store.txn((), [Put(b, b""), Put(a, b"1"), again])
        assert (await store.list(KeyRange.prefix(bench.prefix))).entries == ()

    on(bench, story)


def test_a_put_with_an_unknown_lease_is_refused_whole(bench: Bench) -> None:
    async def story(store: Store) -> None:
        a, b = bench.prefix + "a", bench.prefix + "b"
        with pytest.raises(StoreError, match="lease"):
            await store.txn((), [Put(a, b""), Put(b, b"", lease=12345)])
        assert (await store.list(KeyRange.prefix(bench.prefix))).entries == ()
        assert not (await store.txn([Compare.equals(a, b"x")], [Put(b, b"", lease=12345)])).succeeded

    on(bench, story)


def test_the_longest_transaction_is_taken_and_a_longer_one_refused(bench: Bench) -> None:
    async def story(store: Store) -> None:
        puts = [Put(f"{bench.prefix}{number:03}", b"") for number in range(OPERATIONS_MAX)]
        compares = [Compare.empty(bench.prefix)]
        with pytest.raises(StoreError, match=str(OPERATIONS_MAX)):
            await store.txn(compares, puts)
        assert (await store.txn(compares, puts[1:])).succeeded
        assert len((await store.list(KeyRange.prefix(bench.prefix))).entries) == OPERATIONS_MAX - 1

    on(bench, story)


def test_a_listing_is_ordered_by_key_and_ends_where_its_range_ends(bench: Bench) -> None:
    async def story(store: Store) -> None:
        names = ["b", "a", "c", "é", "d/e"]
        for name in names:
            await store.txn((), [Put(bench.prefix + name, name.encode())])
        listing = await store.list(KeyRange.prefix(bench.prefix))
        assert [entry.key for entry in listing.entries] == [bench.prefix + name for name in sorted(names)]
        part = await store.list(KeyRange(bench.prefix + "a", bench.prefix + "c"))
        assert [entry.value for entry in part.entries] == [b"a", b"b"]
        assert listing.revision == part.revision == store.revision_seen

    on(bench, story)


def test_a_listing_can_be_limited_and_of_keys_only(bench: Bench) -> None:
    async def story(store: Store) -> None:
        revisions = [(await store.txn((), [Put(bench.prefix + name, b"v")])).revision for name in "cab"]
        await store.txn((), [Put(bench.prefix + "c", b"w")])
        everything = KeyRange.prefix(bench.prefix)

        async def names(**options: int) -> str:
            entries = (await store.list(everything, **options)).entries  # type: ignore[arg-type]
            return "".join(entry.key.removeprefix(bench.prefix) for entry in entries)

        assert await names() == "abc"
        assert await names(limit=2) == "ab"
        (first, *_) = (await store.list(everything, keys_only=True)).entries
        assert (first.value, first.create_revision) == (b"", revisions[1])

    on(bench, story)


def test_a_listing_of_more_than_four_megabytes_arrives(bench: Bench) -> None:
    async def story(store: Store) -> None:
        for number in range(6):
            await store.txn((), [Put(f"{bench.prefix}{number}", bytes(1_000_000))])
        listing = await store.list(KeyRange.prefix(bench.prefix))
        assert sum(len(entry.value) for entry in listing.entries) == 6_000_000
        await store.txn((), [Delete(KeyRange.prefix(bench.prefix))])

    on(bench, story)


def test_a_closed_client_says_that_it_is_closed(bench: Bench) -> None:
    async def story(store: Store) -> None:
        await store.close()
        with pytest.raises(StoreError, match="closed"):
            await store.list(KeyRange.prefix(bench.prefix))
        with pytest.raises(StoreError, match="closed"):
            await store.refresh(1)

    on(bench, story)


def test_the_status_of_a_lone_server_says_that_it_leads(bench: Bench) -> None:
    async def story(store: Store) -> None:
        (status,) = await store.statuses()
        assert status.leader
        assert status.revision >= 1

    on(bench, story)
