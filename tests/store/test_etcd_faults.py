"""Real etcd servers that freeze, die, come back, and come back empty."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.core.kv import Compare, KeyRange, Put
from elastic.errors import OutcomeUnknown, StoreUnavailable
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.session import KeepaliveFailed, KeepaliveSucceeded, LeaseLost, SessionEvent, keep_alive
from tests.support.etcd_servers import Server, cluster_of_three, free_ports, one_server, wait_until_answers
from tests.support.mirror_harness import Watched

KEY = "/elastic/j/members/a"
QUICK = EtcdOptions(request_limit_s=1.0)
"""Says sooner that nobody answers."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that the test may treat as it likes."""
    server = one_server(find_etcd(), tmp_path / "etcd").start()
    yield server
    server.thaw_and_kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Server]]:
    servers = [server.start(wait=False) for server in cluster_of_three(find_etcd(), tmp_path)]
    for server in servers:
        wait_until_answers([server.endpoint])
    yield servers
    for server in servers:
        server.thaw_and_kill()


class Events:
    """The events of a session, and ways to wait for them."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[SessionEvent] = asyncio.Queue()

    async def refreshed(self) -> KeepaliveSucceeded:
        """The next refresh that was sent from now on."""
        now = time.monotonic()
        async with asyncio.timeout(20):
            while True:
                event = await self.queue.get()
                if isinstance(event, KeepaliveSucceeded) and event.sent_at >= now:
                    return event
                assert not isinstance(event, LeaseLost), event.reason

    async def first(self, kind: type[SessionEvent]) -> SessionEvent:
        async with asyncio.timeout(20):
            while not isinstance(event := await self.queue.get(), kind):
                pass
        return event


def asked(store: EtcdStore) -> str:
    """The server that is asked now."""
    return str(store._servers.rotation.current)


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_requests_refreshes_and_watches_leave_a_server_of_three_that_fails(
    cluster: list[Server], fault: str, role: str
) -> None:
    async def run() -> None:
        endpoints = [server.endpoint for server in cluster]
        writer = EtcdStore(endpoints)
        leaders = {status.endpoint: status.leader for status in await writer.statuses()}
        assert len(leaders) == 3
        # A random source whose first server has the wanted role.
        for seed in range(1000):
            store = EtcdStore(endpoints, random_source=random.Random(seed))
            if leaders[asked(store)] == (role == "leader"):
                break
        victim = next(server for server in cluster if server.endpoint == asked(store))
        lease, events = await store.grant(15), Events()
        keeping = asyncio.create_task(
            keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.queue.put_nowait)
        )
        async with Watched(store, "/j/") as watched:
            await store.txn((), [Put("/j/member", b"", lease.id)])
            await watched.until(lambda: "/j/member" in watched.values)
            assert asked(store) == victim.endpoint
            began = time.monotonic()
            if fault == "freeze":
                victim.freeze()
            else:
                victim.kill()
            refreshed = await events.refreshed()
            await write(writer, "/j/news")
            await watched.until(lambda: "/j/news" in watched.values)
            took_s = time.monotonic() - began
            print(f"{fault} {role}: refreshed after {refreshed.sent_at - began:.2f} s, news after {took_s:.2f} s")
            assert asked(store) != victim.endpoint
            assert watched.replaced == 0
            assert "/j/member" in watched.values
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()
        await writer.close()

    asyncio.run(run())


async def write(store: EtcdStore, key: str) -> None:
    """Write once, whatever fails: what is unknown is read back."""
    async with asyncio.timeout(20):
        while True:
            try:
                await store.txn([Compare.absent(key)], [Put(key, b"")])
            except (StoreUnavailable, OutcomeUnknown):
                continue
            return


def test_a_server_that_comes_back_with_its_data_is_followed_further(server: Server) -> None:
    async def run() -> None:
        store, events = EtcdStore([server.endpoint], options=QUICK), Events()
        lease = await store.grant(12)
        await store.txn((), [Put("/j/a", b"1", lease.id)])
        keeping = asyncio.create_task(
            keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.queue.put_nowait)
        )
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.values == {"/j/a": b"1"})
            server.kill()
            await watched.until(lambda: len(watched.outages) == 1)
            await asyncio.to_thread(server.start)
            await watched.until(lambda: len(watched.outages) == 2)
            assert watched.outages[1] is None
            await store.txn((), [Put("/j/b", b"2")])
            await watched.until(lambda: watched.values == {"/j/a": b"1", "/j/b": b"2"})
            assert watched.replaced == 0
            assert (await events.refreshed()).ttl_s == 12
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()

    asyncio.run(run())


def test_a_server_that_comes_back_empty_is_noticed_by_mirror_and_session(server: Server) -> None:
    async def run() -> None:
        store, events = EtcdStore([server.endpoint], options=QUICK), Events()
        lease = await store.grant(12)
        for number in range(10):
            await store.txn((), [Put("/j/a", str(number).encode(), lease.id)])
        keeping = asyncio.create_task(
            keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.queue.put_nowait)
        )
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.values == {"/j/a": b"9"})
            server.kill()
            server.lose_data()
            await asyncio.to_thread(server.start)
            await watched.until(lambda: watched.replaced == 1)
            await watched.until(lambda: not watched.values)
            await write(store, "/j/b")
            await watched.until(lambda: watched.values == {"/j/b": b""})
            assert watched.replaced == 1
        await events.first(LeaseLost)
        await keeping
        await store.close()

    asyncio.run(run())


def test_answers_to_questions_asked_at_the_same_time_tell_of_one_replacement(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint], options=QUICK)
        for number in range(10):
            await write(store, f"/j/{number}")
        server.kill()
        server.lose_data()
        await asyncio.to_thread(server.start)
        await asyncio.gather(*(store.list(KeyRange.key(f"/j/{number}")) for number in range(5)))
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            await write(store, "/j/new")
            await watched.until(lambda: "/j/new" in watched.values)
            assert (await store.list(KeyRange.key("/j/new"))).revision == store.revision_seen
            assert (watched.replaced, watched.outages) == (0, [])
        await store.close()

    asyncio.run(run())


def test_a_lone_server_that_was_frozen_is_heard_again_when_it_thaws(server: Server) -> None:
    async def run() -> None:
        store, events = EtcdStore([server.endpoint], options=QUICK), Events()
        lease = await store.grant(12)
        keeping = asyncio.create_task(
            keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.queue.put_nowait)
        )
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            await events.first(KeepaliveSucceeded)
            server.freeze()
            watched.mirror.refresh_soon()
            await events.first(KeepaliveFailed)
            await watched.until(lambda: len(watched.outages) == 1)
            server.thaw()
            await events.refreshed()
            await write(store, "/j/a")
            await watched.until(lambda: watched.values == {"/j/a": b""})
            assert watched.replaced == 0
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()

    asyncio.run(run())


def test_a_server_that_is_not_there_yet_is_reported_in_time_and_found_when_it_comes(tmp_path: Path) -> None:
    server = one_server(find_etcd(), tmp_path / "etcd")

    async def run() -> None:
        store = EtcdStore([server.endpoint], options=EtcdOptions(request_limit_s=0.5))
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match=server.endpoint):
            await store.list(KeyRange.prefix("/j/"))
        with pytest.raises(StoreUnavailable):  # and not OutcomeUnknown: it was surely not sent
            await store.txn((), [Put("/j/a", b"")])
        with pytest.raises(StoreUnavailable):
            await store.refresh(1)
        with pytest.raises(StoreUnavailable):
            await store.grant(5)
        assert await store.statuses() == ()
        assert time.monotonic() - began < 5 * EtcdOptions().request_limit_s
        async with Watched(store, "/j/") as watched:
            await watched.until(lambda: len(watched.outages) == 1)
            await asyncio.to_thread(server.start)
            await watched.until(lambda: watched.mirror.listed)
            assert watched.outages[1:] == [None]
        await store.close()

    try:
        asyncio.run(run())
    finally:
        server.kill()


def test_a_write_whose_answer_was_lost_is_unknown_and_is_not_repeated(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint])
        await store.list(KeyRange.prefix("/j/"))
        server.freeze()
        with pytest.raises(OutcomeUnknown, match=server.endpoint):
            await store.txn((), [Put("/j/a", b"")])
        server.thaw()
        # The write may be carried out late, or never; in no case twice.
        await write(store, "/j/b")
        listing = await store.list(KeyRange.prefix("/j/"))
        assert all(entry.create_revision == entry.mod_revision for entry in listing.entries)
        assert listing.entries[-1].key == "/j/b"
        await store.close()

    asyncio.run(run())


def test_a_server_killed_under_a_write_leaves_it_unknown(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint])
        await store.list(KeyRange.prefix("/j/"))
        server.freeze()
        writing = asyncio.create_task(store.txn((), [Put("/j/a", b"")]))
        await asyncio.sleep(0.2)  # the write is on its way; nothing tells when it has arrived
        server.kill()
        with pytest.raises(OutcomeUnknown):
            await writing
        await store.close()

    asyncio.run(run())


def test_reads_are_answered_by_the_next_server_when_one_is_not_there(server: Server) -> None:
    async def run() -> None:
        (nobody,) = free_ports(1)
        for seed in range(4):
            store = EtcdStore([f"127.0.0.1:{nobody}", server.endpoint], random_source=random.Random(seed))
            assert (await store.list(KeyRange.prefix("/j/"))).revision >= 1
            assert (await store.txn((), [Put("/j/a", b"")])).succeeded
            lease = await store.grant(5)
            assert (await store.refresh(lease.id)).ttl_s == 5
            assert [status.endpoint for status in await store.statuses()] == [server.endpoint]
            await store.close()

    asyncio.run(run())


def test_a_watch_from_a_revision_that_the_store_never_had_is_lost_and_not_deaf(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint])
        with pytest.raises(Exception, match="another store"):
            await anext(store.watch([KeyRange.prefix("/j/")], 1000))
        await store.close()

    asyncio.run(run())
