"""When a step of this node's workers shows that another node is there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from elastic.core.agent.actions import LinkTarget
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.peers.core_adapter import LinkAdapter
from launcher.peers.listener import PeerListener
from launcher.peers.silence_detector import NEVER
from tests.support.agent_harness import Bench
from tests.support.silence_harness import following

STEPPED_AT = 12.5


class NoListener(PeerListener):
    """One to which nobody connects."""

    def __init__(self) -> None:
        pass

    def hand_to(self, take: Callable[[socket.socket], None]) -> None:
        pass


async def nowhere(node: str) -> LinkTarget | None:
    return None


def heard_at(bench: Bench, node: str) -> float:
    """When the node was heard by a step; workers of this node reported one at `STEPPED_AT`."""

    async def ask() -> float:
        log = AgentLog("b", Console(2))
        adapter = LinkAdapter(
            NoListener(), "job", bench.facts, lambda event: None, log, find=nowhere, stepped_at=lambda: STEPPED_AT
        )
        try:
            return adapter._world_stepped_at(node)
        finally:
            adapter.close()

    return asyncio.run(ask())


@pytest.mark.parametrize("node", ["a", "c"])
def test_a_step_counts_as_heard_from_every_member_of_the_world(node: str) -> None:
    assert heard_at(following(), node) == STEPPED_AT


def test_a_step_does_not_count_as_heard_from_a_node_that_is_no_member() -> None:
    bench = following()
    bench.others("d")
    assert heard_at(bench, "d") == NEVER


def test_a_step_of_one_generation_does_not_count_in_another() -> None:
    bench = following()
    bench.world(2, "a b c")
    assert bench.facts.generation is not None
    assert (bench.facts.generation.g, bench.facts.workers.g) == (2, 1)
    assert heard_at(bench, "c") == NEVER


def test_without_a_generation_there_is_no_step() -> None:
    assert heard_at(Bench("b", "3", after="a"), "a") == NEVER


def test_a_step_of_a_job_with_parameter_servers_does_not_count_because_its_workers_need_no_others() -> None:
    bench = following()
    bench.roster(1, "a b c")
    generation = bench.facts.generation
    assert generation is not None
    assert (generation.one_world, generation.g, bench.facts.workers.g) == (False, 1, 1)
    assert heard_at(bench, "c") == NEVER
