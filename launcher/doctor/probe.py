"""Asks every member which others it can connect to. The answers arrive within seconds, through a watch."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection
from contextlib import aclosing, suppress

from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, Delete, KeyRange, Put
from elastic.errors import DocumentError, ElasticError, StoreError
from elastic.store.protocol import Store
from launcher.system.time_limit import wait_at_most
from launcher.wire.probe_messages import Probe, ProbeAnswer, encode, read

ANSWER_LIMIT_S = 5.0
"""A healthy member needs `launcher.peers.reachability.LIMIT_S` at most."""
PROBE_TTL_S = 15.0
"""The lifetime of a probe whose doctor died."""


class ProbeBusy(ElasticError):
    """The probe of another doctor is still in etcd."""


async def probe_members(store: Store, keys: JobKeys, nodes: Collection[str]) -> dict[str, ProbeAnswer]:
    """Ask all members, wait for the answers of `nodes`, delete all keys, and return the answers that arrived in time.

    Raises `ProbeBusy` while another doctor asks, and `StoreError` if the store does not answer.
    """
    lease = await store.grant(PROBE_TTL_S)
    probe = Probe(secrets.token_hex(8), time.time())
    place = KeyRange.prefix(keys.answer(probe.id, ""))
    try:
        revision = await _write(store, keys, probe, lease.id)
        answers: dict[str, ProbeAnswer] = {}
        await wait_at_most(ANSWER_LIMIT_S, _collect(store, place, revision + 1, set(nodes), answers))
        return answers
    finally:
        # Delete the probe first: a member that answers later then finds no probe and writes nothing.
        with suppress(StoreError):
            await store.revoke(lease.id)
            await store.txn([], [Delete(place)])


async def _write(store: Store, keys: JobKeys, probe: Probe, lease: int) -> int:
    """Write the probe as soon as no other one exists; return its revision."""
    place = KeyRange.key(keys.probe)
    for _ in range(2):
        wrote = await store.txn([Compare.absent(keys.probe)], [Put(keys.probe, encode(probe), lease)])
        if wrote.succeeded:
            return wrote.revision
        with suppress(TimeoutError):
            async with asyncio.timeout(PROBE_TTL_S), aclosing(store.watch([place], wrote.revision + 1)) as batches:
                async for batch in batches:
                    if any(change.deleted for change in batch.changes):
                        break
    raise ProbeBusy("another elastic-ctl doctor is running; try again in a few seconds")


async def _collect(
    store: Store, place: KeyRange, revision: int, waiting: set[str], answers: dict[str, ProbeAnswer]
) -> None:
    """Read answers until every node has answered. Unreadable answers are ignored."""
    async with aclosing(store.watch([place], revision)) as batches:
        async for batch in batches:
            for change in batch.changes:
                node = change.entry.key.removeprefix(place.start)
                if not change.deleted:
                    with suppress(DocumentError):
                        answers[node] = read(change.entry.value, ProbeAnswer)
            if waiting <= set(answers):
                return
