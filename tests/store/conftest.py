from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.etcd.stubs import rpc
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from elastic.store.protocol import Store
from tests.store.servers import Server, binary_of, one_server

_numbers = itertools.count(1)

PATIENT = EtcdOptions(try_s=20.0, request_limit_s=60.0)
"""What a store means does not depend on how fast a busy machine is."""


class Bench(Protocol):
    """What a contract test gets: clients of one store, a part of it of its own, and what the protocol leaves out."""

    prefix: str
    lease_s: float
    """The shortest lease that this store grants."""

    def client(self) -> Store: ...

    async def compact(self, store: Store, revision: int) -> None: ...


class MemoryBench:
    prefix = "/test/"
    lease_s = 1.0  # It is refreshed in the loop of the test, which a busy machine may hold up.

    def __init__(self) -> None:
        self.core = MemoryCore()

    def client(self) -> Store:
        return MemoryStore(self.core, time.monotonic)

    async def compact(self, store: Store, revision: int) -> None:
        self.core.compact(revision)


class EtcdBench:
    lease_s = 2.0

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.prefix = f"/test{next(_numbers)}/"

    def client(self) -> Store:
        return EtcdStore([self.endpoint], options=PATIENT)

    async def compact(self, store: Store, revision: int) -> None:
        assert isinstance(store, EtcdStore)
        await store._servers.rotation.current.kv.Compact(rpc.CompactionRequest(revision=revision))


def on(bench: Bench, story: Callable[[Store], Awaitable[None]]) -> None:
    """Play the story with a client of the store."""

    async def run() -> None:
        store = bench.client()
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(run())


def _server(version: str, folder: Path) -> Iterator[Server]:
    binary = binary_of(version)
    if binary is None:
        pytest.skip(f"there is no etcd {version} on this machine")
    server = one_server(binary, folder).start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def etcd_34(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _server("3.4", tmp_path_factory.mktemp("etcd34"))


@pytest.fixture(scope="session")
def etcd_35(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    yield from _server("3.5", tmp_path_factory.mktemp("etcd35"))


@pytest.fixture(params=["memory", "etcd_34", "etcd_35"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "memory":
        return MemoryBench()
    server: Server = request.getfixturevalue(request.param)
    return EtcdBench(server.endpoint)
