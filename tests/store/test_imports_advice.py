"""The list of the script's imports in every store: what nodes have written, the next one reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from elastic.channel.messages import ScriptImport, ScriptImports
from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.view import encode
from elastic.store.protocol import Store
from launcher.agent.imports_advice import ImportsPublisher, read_advice
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from tests.support.store_bench import Bench, on


@pytest.fixture
def agent_log() -> Iterator[AgentLog]:
    console = Console(2)
    yield AgentLog("a", console)
    console.close()


def test_of_several_nodes_with_lists_of_their_own_one_is_read_until_the_job_is_forgotten(
    bench: Bench, agent_log: AgentLog
) -> None:
    keys = JobKeys("j", bench.prefix)
    lists = [ScriptImports((ScriptImport("wave"), ScriptImport(f"m{number}", "", ("A",)))) for number in range(4)]

    async def story(store: Store) -> None:
        await store.txn((), (Put(keys.incarnation, encode("i1")),))
        assert await read_advice(store, keys, agent_log) is None
        publishers = [ImportsPublisher(store, keys, agent_log) for _ in lists]
        running = [asyncio.create_task(publisher.run()) for publisher in publishers]
        for publisher, imports in zip(publishers, lists, strict=True):
            publisher.loaded(imports, incarnation="i1")
        await asyncio.gather(*(publisher.settle(10) for publisher in publishers))
        for task in running:
            task.cancel()
        assert await read_advice(store, keys, agent_log) in lists
        await store.txn((), (Delete(KeyRange.prefix(keys.root)),))  # As `elastic-ctl forget` does.
        assert await read_advice(store, keys, agent_log) is None

    on(bench, story)
