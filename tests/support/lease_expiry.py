"""Ends of leases as events: what etcd has taken away, and what agents have seen of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Sequence

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, Put
from elastic.store.etcd import EtcdStore
from launcher.wire.probe_messages import Probe
from launcher.wire.probe_messages import encode as encode_probe
from tests.support.agent_process import Node
from tests.support.awaited_events import LIMIT_S
from tests.support.job_harness import Job


async def leases_end(job: Job, nodes: Sequence[Node], *, seen_by: Sequence[Node] = ()) -> None:
    """Wait until etcd has taken the keys of these nodes away, and until the agents `seen_by` know of it.

    An agent learns all changes in their order: one that answers a question which was put after the keys had gone has
    seen them go.
    """
    keys, probe = JobKeys(job.job_id), secrets.token_hex(8)
    async with _store(job) as store, asyncio.timeout(LIMIT_S):
        await _until_gone(store, keys, {keys.member(node.id) for node in nodes})
        if seen_by:
            asked = await store.txn([], [Put(keys.probe, encode_probe(Probe(probe, time.time())))])
            await _until_there(store, keys, {keys.answer(probe, node.id) for node in seen_by}, asked.revision)


@contextlib.asynccontextmanager
async def _store(job: Job) -> AsyncIterator[EtcdStore]:
    store = EtcdStore([job.etcd.endpoint])
    try:
        yield store
    finally:
        await store.close()


async def _until_gone(store: EtcdStore, keys: JobKeys, left: set[str]) -> None:
    listing = await store.list(KeyRange.prefix(keys.members))
    left &= {entry.key for entry in listing.entries}
    async with contextlib.aclosing(store.watch([KeyRange.prefix(keys.members)], listing.revision + 1)) as watch:
        while left:
            left -= {change.entry.key for change in (await anext(watch)).changes if change.deleted}


async def _until_there(store: EtcdStore, keys: JobKeys, missing: set[str], revision: int) -> None:
    async with contextlib.aclosing(store.watch([KeyRange.prefix(keys.answers)], revision)) as watch:
        while missing:
            missing -= {change.entry.key for change in (await anext(watch)).changes}
