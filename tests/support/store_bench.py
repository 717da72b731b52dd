"""What a contract test of a store gets: clients of one store, in memory or of etcd."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.etcd.stubs import rpc
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from elastic.store.protocol import Store

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
        await store._servers.rotation.current.stub.Compact(rpc.CompactionRequest(revision=revision))


def on(bench: Bench, story: Callable[[Store], Awaitable[None]]) -> None:
    """Play the story with a client of the store."""

    async def run() -> None:
        store = bench.client()
        try:
            await story(store)
        finally:
            await store.close()

    asyncio.run(run())
