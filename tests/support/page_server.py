"""A page server on a store in memory, and a client."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from elastic.core.keys import JobKeys
from elastic.core.kv import Put
from elastic.core.view import encode
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.web.job_feed import JobFeeds
from launcher.web.server import PageServer
from tests.support.stored_job import GO, MEMBER, SPEC, WORLD

TOKEN = "a-token-of-somebody"


class Served:
    """A page server on a store in memory, with a job that trains, and a client."""

    def __init__(self, client: aiohttp.ClientSession, base: str, core: MemoryCore) -> None:
        self.client = client
        self.base = base
        self.core = core

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        async with self.client.get(self.base + path, headers=headers) as answer:
            return answer.status, dict(answer.headers), await answer.text()

    async def act(self, action: object, **headers: str) -> tuple[int, dict[str, str]]:
        sent = {"Origin": self.base, "Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
        path = f"{self.base}/api/job/j/actions"
        async with self.client.post(path, data=json.dumps(action), headers=sent) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def serving(token: str = "", only: str = "", host: str = "127.0.0.1") -> AsyncIterator[Served]:
    core = MemoryCore()
    store = MemoryStore(core, time.monotonic)
    keys = JobKeys("j", "/p")
    documents = {"incarnation": "i", "spec": SPEC, "generation": WORLD, "go": GO}
    core.txn((), [Put(keys.root + name, encode(document)) for name, document in documents.items()])  # type: ignore[arg-type]
    for node in ("a", "b"):
        core.txn((), (Put(keys.member(node), encode(MEMBER)),))
    lives = JobFeeds(store, "/p", ("h:1",))
    served = PageServer(lives, only, token)
    _, port = await served.open(host, 0)
    try:
        async with aiohttp.ClientSession() as client:
            yield Served(client, f"http://127.0.0.1:{port}", core)
    finally:
        await served.close()
        await lives.close()
        await store.close()
