"""The in-memory core and a real etcd do the same, step by step, for any sequence of transactions."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from elastic.core.kv import Compare, Delete, KeyChange, KeyRange, KeyValue, Operation, Put, WatchBatch
from elastic.store.etcd import EtcdStore
from elastic.store.memory_core import MemoryCore
from tests.support.etcd_servers import Server

STEPS = 300


def compares(chance: random.Random, prefix: str, keys: list[str], revision: int) -> list[Compare]:
    """Up to two compares that hold about half of the time."""
    key = chance.choice(keys)
    made = [
        Compare.absent(key),
        Compare.modified(key, revision),
        Compare.created(key, revision - chance.randrange(4)),
        Compare.equals(key, str(chance.randrange(3)).encode()),
        Compare.empty(prefix + chance.choice(["a/", "b/"])),
    ]
    return chance.sample(made, chance.randrange(3))


def operations(chance: random.Random, keys: list[str], leases: dict[int, int]) -> list[Operation]:
    """Up to four operations; a key is written once at most. Leases are etcd's."""
    result: list[Operation] = []
    for key in chance.sample(keys, chance.randrange(4)):
        if chance.random() < 0.6:
            lease = chance.choice([0, *leases])
            result.append(Put(key, str(chance.randrange(3)).encode(), lease))
        else:
            result.append(Delete(KeyRange.key(key)))
    return result


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", ["etcd_34", "etcd_35"])
def test_memory_and_etcd_agree_on_every_answer_and_on_the_history(
    version: str, seed: int, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(version)
    chance, prefix = random.Random(seed), f"/same-{seed}/"
    keys = [f"{prefix}{folder}/{number}" for folder in "ab" for number in range(3)]

    async def run() -> None:
        store, core = EtcdStore([server.endpoint]), MemoryCore()
        base = (await store.list(KeyRange.key("/none"))).revision - core.revision
        leases: dict[int, int] = {}  # etcd's id -> the core's

        def like_core(entry: KeyValue) -> KeyValue:
            created = entry.create_revision - base if entry.create_revision else 0
            lease = known.get(entry.lease, 0)
            return replace(entry, create_revision=created, mod_revision=entry.mod_revision - base, lease=lease)

        def for_core(operation: Operation) -> Operation:
            return replace(operation, lease=leases.get(operation.lease, 0)) if isinstance(operation, Put) else operation

        known: dict[int, int] = {}
        for _ in range(STEPS):
            dice = chance.randrange(20)
            if dice == 0:
                lease = await store.grant(600)
                leases[lease.id] = known[lease.id] = core.grant(600, now=0).id
            elif dice == 1 and leases:
                victim = chance.choice(list(leases))
                await store.revoke(victim)
                core.revoke(leases.pop(victim))
            else:
                when = compares(chance, prefix, keys, core.revision)
                then = operations(chance, keys, leases)
                theirs_when = [
                    replace(c, operand=c.operand + base) if isinstance(c.operand, int) and c.operand > 0 else c
                    for c in when
                ]
                theirs = await store.txn(theirs_when, then)
                ours = core.txn(when, list(map(for_core, then)))
                assert theirs.succeeded == ours.succeeded
                assert theirs.revision - base == ours.revision
                span = KeyRange.prefix(prefix + chance.choice(["a/", "b/"]))
                assert tuple(map(like_core, (await store.list(span)).entries)) == core.list(span).entries
        history = core.history([KeyRange.prefix(prefix)], 1)
        seen: list[WatchBatch] = []
        async for batch in store.watch([KeyRange.prefix(prefix)], base + 2):
            if batch.changes:
                changes = tuple(KeyChange(like_core(c.entry), c.deleted) for c in batch.changes)
                seen.append(WatchBatch(batch.revision - base, changes))
            if len(seen) == len(history):
                break
        assert tuple(seen) == history
        for left in leases:
            await store.revoke(left)
        await store.txn((), [Delete(KeyRange.prefix(prefix))])
        await store.close()

    asyncio.run(run())
