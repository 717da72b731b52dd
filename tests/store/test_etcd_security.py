"""etcd with users: who may, who may not, and tokens that end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.core.kv import NOW, KeyRange, Put
from elastic.errors import StoreDenied, WatchLost
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdOptions, EtcdStore
from tests.support.etcd_servers import Server, binary_of, one_server
from tests.support.etcd_users import add_users
from tests.support.mirror_harness import Watched


@pytest.fixture(scope="module", params=["3.4", "3.5"])
def guarded_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the users root and job; job may do everything under /elastic/ and nothing else."""
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip(f"there is no etcd {request.param} on this machine")
    server = one_server(binary, tmp_path_factory.mktemp("auth")).start()

    asyncio.run(add_users(server.endpoint))
    yield server
    server.kill()


def test_a_user_with_rights_on_the_prefix_can_do_everything_there(guarded_server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([guarded_server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        async with Watched(store, "/elastic/j/") as watched:
            await watched.until(lambda: watched.mirror.listed)
            lease = await store.grant(30)
            await store.txn((), [Put("/elastic/j/a", b"", lease.id)])
            await watched.until(lambda: set(watched.values) == {"/elastic/j/a"})
            assert (await store.refresh(lease.id)).ttl_s == 30
            await store.revoke(lease.id)
            await watched.until(lambda: not watched.values)
            assert len(await store.statuses()) == 1
        await store.close()

    asyncio.run(run())


def test_a_key_outside_the_rights_is_denied_for_reads_writes_and_watches(guarded_server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([guarded_server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        with pytest.raises(StoreDenied, match="permission denied"):
            await store.list(KeyRange.prefix("/other/"))
        with pytest.raises(StoreDenied, match="permission denied"):
            await store.txn((), [Put("/other/a", b"")])
        with pytest.raises(StoreDenied):
            async for _ in store.watch([KeyRange.prefix("/other/")], 1):
                pass
        await store.close()

    asyncio.run(run())


def test_a_wrong_password_and_a_missing_user_are_denied(guarded_server: Server) -> None:
    async def run() -> None:
        for options in (EtcdOptions(user="job", password="wrong"), EtcdOptions()):
            store = EtcdStore([guarded_server.endpoint], options=options)
            with pytest.raises(StoreDenied, match=guarded_server.endpoint):
                await store.list(KeyRange.prefix("/elastic/"))
            await store.close()

    asyncio.run(run())


def test_a_token_that_is_no_longer_good_is_replaced(guarded_server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([guarded_server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        for call in (
            store.list(KeyRange.prefix("/elastic/")),
            store.txn((), [Put("/elastic/x", b"")]),
            store.grant(30),
        ):
            store._servers.token = "spoiled"
            await call
            assert store._servers.token not in ("", "spoiled")
        lease = await store.grant(30)
        store._servers.token = "spoiled"
        assert (await store.refresh(lease.id)).ttl_s == 30
        await store.close()

    asyncio.run(run())


def test_a_user_where_etcd_knows_no_users_is_no_obstacle(etcd_35: Server) -> None:
    async def run() -> None:
        store = EtcdStore([etcd_35.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        assert (await store.list(KeyRange.prefix("/elastic/"))).revision >= 1
        assert (await store.grant(30)).ttl_s == 30
        await store.close()

    asyncio.run(run())


def test_a_watch_of_a_store_that_is_behind_needs_no_right_but_that_on_its_own_keys(guarded_server: Server) -> None:
    async def run() -> None:
        store = EtcdStore([guarded_server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        await store.list(KeyRange.prefix("/elastic/j/"))
        store._servers.revision_seen += 1000  # As if a server that is further on had answered.
        with pytest.raises(WatchLost, match="another store answers"):
            async for _ in store.watch([KeyRange.prefix("/elastic/j/")], NOW):
                pass
        await store.close()

    asyncio.run(run())


def test_a_password_that_is_refused_is_not_shown_again_at_once_but_a_new_one_is(guarded_server: Server) -> None:
    known = ["wrong"]

    async def run() -> None:
        options = EtcdOptions(user="job", password="wrong", password_again=lambda: known[-1])
        store = EtcdStore([guarded_server.endpoint], options=options)
        with pytest.raises(StoreDenied) as first:
            await store.list(KeyRange.prefix("/elastic/"))
        known.append("job-secret")
        with pytest.raises(StoreDenied) as second:
            await store.list(KeyRange.prefix("/elastic/"))
        assert second.value is first.value, "etcd was not asked"
        store._servers._refused = (float("-inf"), first.value)  # As if some time had passed.
        await store.list(KeyRange.prefix("/elastic/"))
        await store.close()

    asyncio.run(run())


def test_users_that_etcd_knows_since_a_moment_ago_are_no_obstacle_to_a_refresh(tmp_path: Path) -> None:
    server = one_server(find_etcd(), tmp_path).start()

    async def run() -> None:
        store = EtcdStore([server.endpoint], options=EtcdOptions(user="job", password="job-secret"))
        lease = await store.grant(30)
        await add_users(server.endpoint)
        store._servers.forget("")
        assert (await store.refresh(lease.id)).ttl_s == 30
        assert store._servers.token
        await store.close()

    try:
        asyncio.run(run())
    finally:
        server.kill()
