"""Refreshes at a real etcd: one stream carries them, and a stream that broke costs no refresh."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.errors import StoreUnavailable
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdStore
from tests.bench.idle import counted
from tests.support.etcd_servers import Server, one_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = one_server(find_etcd(), tmp_path / "etcd").start()
    yield server
    server.thaw_and_kill()


def opened(server: Server) -> int:
    """How many streams of refreshes the server has seen."""
    return round(counted(server.endpoint, "grpc_server_started_total").get("LeaseKeepAlive", 0))


def test_many_refreshes_open_one_stream(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint])
        lease, other = await store.grant(30), await store.grant(40)
        for _ in range(5):
            assert (await store.refresh(lease.id)).ttl_s == 30
            assert (await store.refresh(other.id)).ttl_s == 40
        assert opened(server) == 1
        await store.close()

    asyncio.run(run())


def test_refreshes_of_two_leases_at_the_same_time_each_get_their_own_answer(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint])
        leases = [await store.grant(30), await store.grant(40)]
        for _ in range(3):
            answers = await asyncio.gather(*(store.refresh(lease.id) for lease in leases), store.refresh(1))
            assert [answer.ttl_s for answer in answers] == [30, 40, 0]
        await store.close()

    asyncio.run(run())


def test_a_server_that_was_started_again_since_the_last_refresh_gives_no_failed_one(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint])
        lease = await store.grant(30)
        assert (await store.refresh(lease.id)).ttl_s == 30
        server.kill()
        await asyncio.to_thread(server.start)
        await store.statuses()  # grpc is connected again
        assert (await store.refresh(lease.id)).ttl_s == 30
        await store.close()

    asyncio.run(run())


def test_a_late_answer_is_not_taken_for_that_of_the_next_refresh(server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([server.endpoint])
        lease = await store.grant(30)
        assert (await store.refresh(lease.id)).ttl_s == 30
        server.freeze()
        with pytest.raises(StoreUnavailable):
            await store.refresh(lease.id)
        server.thaw()
        assert (await store.refresh(1)).ttl_s == 0
        assert (await store.refresh(lease.id)).ttl_s == 30
        await store.close()

    asyncio.run(run())
