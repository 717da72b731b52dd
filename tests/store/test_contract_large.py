"""A range with more in it than one answer carries: whole, at one revision, and with every option of a listing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from elastic.core.kv import Delete, KeyRange, Put
from elastic.errors import StoreUnavailable, TooLarge, WatchLost
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdStore
from elastic.store.etcd.endpoint import MESSAGE_BYTES_MAX
from elastic.store.etcd.errors import deadline_error
from elastic.store.etcd.paging import LISTING_BYTES_MAX, PAGE_KEYS
from elastic.store.protocol import Store
from tests.support import store_bench
from tests.support.etcd_servers import one_server
from tests.support.mirror_harness import Watched
from tests.support.store_bench import PATIENT, Bench, EtcdBench

LARGE = bytes(1_450_000)
"""A little below what etcd takes in one request."""
MANY = 60
"""Of them are more than any answer that a client takes."""


def on(bench: Bench, story: Callable[[Store], Awaitable[None]]) -> None:
    """Play the story; the part of the store is empty afterwards, since so much is a burden for later tests."""

    async def emptied(store: Store) -> None:
        try:
            await story(store)
        finally:
            await store.txn((), [Delete(KeyRange.prefix(bench.prefix))])

    store_bench.on(bench, emptied)


async def put_many(store: Store, prefix: str, count: int = MANY, value: bytes = LARGE) -> None:
    for number in range(count):
        await store.txn((), [Put(f"{prefix}{number:04}", value)])


@pytest.fixture(params=["etcd_34", "etcd_35"])
def etcd_bench(request: pytest.FixtureRequest) -> EtcdBench:
    return EtcdBench(request.getfixturevalue(request.param).endpoint)


def test_sixty_large_documents_are_listed_whole(bench: Bench) -> None:
    async def story(store: Store) -> None:
        await put_many(store, bench.prefix)
        listing = await store.list(KeyRange.prefix(bench.prefix))
        assert [entry.key for entry in listing.entries] == [f"{bench.prefix}{number:04}" for number in range(MANY)]
        assert {len(entry.value) for entry in listing.entries} == {len(LARGE)}
        assert listing.revision == store.revision_seen

    on(bench, story)


def test_every_option_of_a_listing_means_the_same_of_large_documents(bench: Bench) -> None:
    async def story(store: Store) -> None:
        await put_many(store, bench.prefix, 30)
        everything = KeyRange.prefix(bench.prefix)

        async def numbers(**options: int) -> list[int]:
            entries = (await store.list(everything, **options)).entries  # type: ignore[arg-type]
            return [int(entry.key.removeprefix(bench.prefix)) for entry in entries]

        assert await numbers(limit=25) == [*range(25)]
        assert await numbers(keys_only=True) == [*range(30)]
        assert await numbers(keys_only=True, limit=3) == [*range(3)]

    on(bench, story)


def test_a_mirror_follows_sixty_large_documents_and_what_comes_after_them(bench: Bench) -> None:
    async def story(store: Store) -> None:
        await put_many(store, bench.prefix)
        own = bench.client()
        async with Watched(own, bench.prefix) as watched:
            await watched.until(lambda: len(watched.mirror.entries) == MANY)
            await put_many(store, bench.prefix, value=LARGE[1:])
            await store.txn((), [Put(bench.prefix + "last", b"small")])
            await watched.until(lambda: bench.prefix + "last" in watched.mirror.entries)
            assert len(watched.mirror.entries) == MANY + 1
            assert watched.outages == []
        await own.close()

    on(bench, story)


def test_a_watch_that_has_sixty_large_documents_to_catch_up_with_is_lost_so_that_its_reader_lists(
    etcd_bench: EtcdBench,
) -> None:
    async def story(store: Store) -> None:
        first = (await store.txn((), [Put(etcd_bench.prefix + "first", b"")])).revision
        await put_many(store, etcd_bench.prefix)
        async with aclosing(store.watch([KeyRange.prefix(etcd_bench.prefix)], first)) as batches:
            assert (await anext(batches)).changes == ()
            with pytest.raises(WatchLost, match="larger than max"):
                await anext(batches)

    on(etcd_bench, story)


class Disturbed(EtcdStore):
    """A client that has somebody do something to etcd after each answer to a listing."""

    def __init__(self, bench: EtcdBench, between: Callable[[int], Awaitable[None]]) -> None:
        super().__init__([bench.endpoint], options=PATIENT)
        self._between = between
        self.answers = 0

    async def _ask_range(self, request: Any, *, divisible: bool = False) -> Any:
        answer = await super()._ask_range(request, divisible=divisible)
        self.answers += 1
        await self._between(self.answers)
        return answer


def test_all_pages_of_a_listing_are_of_the_same_moment_while_another_client_writes(etcd_bench: EtcdBench) -> None:
    first, last = etcd_bench.prefix + "0000", f"{etcd_bench.prefix}{MANY - 1:04}"

    async def story(store: Store) -> None:
        async def write(number: int) -> None:
            text = str(number).encode()
            await store.txn((), [Put(first, text), Put(last, text), Put(f"{etcd_bench.prefix}1{number:03}", b"new")])

        await put_many(store, etcd_bench.prefix)
        disturbed = Disturbed(etcd_bench, write)
        listing = await disturbed.list(KeyRange.prefix(etcd_bench.prefix))
        held = {entry.key: entry for entry in listing.entries}
        assert disturbed.answers > 2
        assert (len(held), held[first].value, held[last].value) == (MANY, LARGE, LARGE)
        assert max(entry.mod_revision for entry in listing.entries) == listing.revision
        await disturbed.close()

    on(etcd_bench, story)


def test_a_compaction_between_two_pages_begins_the_listing_again(etcd_bench: EtcdBench) -> None:
    async def story(store: Store) -> None:
        async def compact_once(number: int) -> None:
            if number == 1:
                written = await store.txn((), [Put(etcd_bench.prefix + "new", b"")])
                await etcd_bench.compact(store, written.revision)

        await put_many(store, etcd_bench.prefix)
        disturbed = Disturbed(etcd_bench, compact_once)
        listing = await disturbed.list(KeyRange.prefix(etcd_bench.prefix))
        assert len(listing.entries) == MANY + 1, "the listing is newer than the compaction"
        assert listing.revision == store.revision_seen
        await disturbed.close()

    on(etcd_bench, story)


def test_a_range_whose_answer_is_late_is_not_asked_for_again_but_in_pages(etcd_bench: EtcdBench) -> None:
    async def story(store: Store) -> None:
        await put_many(store, etcd_bench.prefix, 20, b"small")
        slow = EtcdStore([etcd_bench.endpoint])
        asked: list[int] = []
        call = slow._servers.call

        async def late_if_whole(method: Any, request: Any, limit_s: float, metadata: Any = None) -> Any:
            asked.append(request.limit)
            if not request.limit:
                raise deadline_error()
            return await call(method, request, limit_s, metadata)

        slow._servers.call = late_if_whole  # type: ignore[method-assign]
        listing = await slow.list(KeyRange.prefix(etcd_bench.prefix))
        assert [entry.key for entry in listing.entries] == [f"{etcd_bench.prefix}{number:04}" for number in range(20)]
        assert asked == [0, PAGE_KEYS, 2 * PAGE_KEYS]
        await slow.close()

    on(etcd_bench, story)


def test_an_etcd_that_is_compacted_all_the_time_is_told_as_that(etcd_bench: EtcdBench) -> None:
    async def story(store: Store) -> None:
        async def compact(number: int) -> None:
            written = await store.txn((), [Put(etcd_bench.prefix + "new", b"")])
            await etcd_bench.compact(store, written.revision)

        await put_many(store, etcd_bench.prefix, 20)
        disturbed = Disturbed(etcd_bench, compact)
        with pytest.raises(
            StoreUnavailable, match="etcd was compacted 3 times while a range of several pages was read"
        ):
            await disturbed.list(KeyRange.prefix(etcd_bench.prefix))
        await disturbed.close()

    on(etcd_bench, story)


def test_a_job_of_a_thousand_nodes_is_listed_with_one_request(etcd_bench: EtcdBench) -> None:
    async def story(store: Store) -> None:
        async def nothing(number: int) -> None:
            pass

        for start in range(0, 1000, 100):
            await store.txn((), [Put(f"{etcd_bench.prefix}{start + n:04}", bytes(1000)) for n in range(100)])
        counted = Disturbed(etcd_bench, nothing)
        assert len((await counted.list(KeyRange.prefix(etcd_bench.prefix))).entries) == 1000
        assert counted.answers == 1
        await counted.close()

    on(etcd_bench, story)


def test_a_range_of_more_than_a_reader_holds_is_refused_by_its_name_and_its_keys_are_listed(
    etcd_bench: EtcdBench,
) -> None:
    async def story(store: Store) -> None:
        count = LISTING_BYTES_MAX // len(LARGE) + 1
        await put_many(store, etcd_bench.prefix, count)
        everything = KeyRange.prefix(etcd_bench.prefix)
        with pytest.raises(TooLarge, match=f"etcd holds more than 128 MiB from {etcd_bench.prefix} on"):
            await store.list(everything)
        assert len((await store.list(everything, keys_only=True)).entries) == count

    on(etcd_bench, story)


def test_a_document_that_is_larger_than_any_answer_is_named(tmp_path: Path) -> None:
    server = one_server(find_etcd(), tmp_path / "etcd", "--max-request-bytes=40000000").start()
    try:

        async def story() -> None:
            store = EtcdStore([server.endpoint], options=PATIENT)
            for name, value in (("a", b"small"), ("b", bytes(MESSAGE_BYTES_MAX)), ("c", b"small")):
                await store.txn((), [Put(f"/x/{name}", value)])
            for span in (KeyRange.prefix("/x/"), KeyRange.key("/x/b")):
                with pytest.raises(TooLarge, match="the document at /x/b in etcd is larger than 16 MiB; delete it"):
                    await store.list(span)
            assert len((await store.list(KeyRange.prefix("/x/"), keys_only=True)).entries) == 3
            await store.close()

        asyncio.run(story())
    finally:
        server.kill()
