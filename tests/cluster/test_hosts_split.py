"""A network that is split: machines that reach etcd and not each other. The others go on without who is cut off."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest

from tests.cluster import hosts
from tests.cluster.ground import GROWING, Ground, goes_on, said, story
from tests.support.agent_process import Node
from tests.support.fake_workers import Worker
from tests.support.job_harness import CALM_TTL_S

REASON = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "hosts are here"),
]

GIVES_UP = ("--partition-timeout", "2", "--silence-timeout", "0", *GROWING)
"""Without heartbeats: a node that is cut off after its third one is evicted as silent, a second later."""
QUICK = (*GIVES_UP, "--host-cooldown", "1")
LINK_ENDS_S = 13.0
"""So long the kernel believes in a link whose way is closed: for six seconds after the last packet that came, and where
something is sent within them, for six seconds and a retransmission after that."""
LASTS_S = 4.0
"""Longer than `--partition-timeout`."""


def cut(on: Ground, node: Node, others: Sequence[Node], *, closed: bool = True) -> None:
    """The way between a node and others, in both directions."""
    for other in others:
        for one, two in ((node, other), (other, node)):
            (on.host(one).drop if closed else on.host(one).let)(on.host(two))


async def wait(world: Sequence[Worker], **more: bool) -> None:
    """Each worker says that it waits for another one before the process group stands."""
    for worker in world:
        await worker.obeys("say", {"type": "joining", "missing": "rank 1", **more})


async def step(world: Sequence[Worker], number: int) -> None:
    """Each worker says that it has made this step."""
    for worker in world:
        metrics: dict[str, float] = {}
        await worker.obeys("say", {"type": "progress", "step": number, "world": len(world), "metrics": metrics})


@story
async def test_a_member_that_the_others_do_not_reach_is_left_out_while_they_wait_and_is_back_with_the_way(
    on: Ground,
) -> None:
    await left_out(on, 2, kept_out_s=14)


@story
async def test_the_first_that_the_others_do_not_reach_is_left_out_though_it_is_the_one_that_proposes(
    on: Ground,
) -> None:
    await left_out(on, 0, kept_out_s=1)


async def left_out(on: Ground, who: int, *, kept_out_s: int) -> None:
    """One is cut off in a world that has made steps. Nothing is charged, and everybody reads why."""
    flags = ("--max-restarts", "0", "--host-cooldown", str(kept_out_s), *GIVES_UP)
    await on.nodes(3, "--np", "3", *flags, ttl_s=CALM_TTL_S)
    world = await on.job.world(1, 3)
    nodes = [on.job.node_of(worker) for worker in world]
    alone, others = nodes[who], [node for node in nodes if node is not nodes[who]]
    await step(world, 1)
    cut(on, alone, others)
    smaller = await on.job.newest_world(2)
    assert {on.job.node_of(worker).name for worker in smaller} == {node.name for node in others}
    host, names = on.host(alone).address, " and ".join(on.host(node).address for node in others)
    for node in others:
        await node.says(rf"2 nodes, .*: {host} is quarantined for {kept_out_s} s: {names} cannot connect to it")
    await alone.says(rf"quarantined until .*: {names} cannot connect to it; it rejoins automatically")
    await others[0].says(rf"does not count against --max-restarts: {host} is quarantined")
    if kept_out_s > LINK_ENDS_S:  # Then the proposer knows that the way is closed, and does not take it back.
        await asyncio.sleep(kept_out_s + 1.0)
        await goes_on(smaller)
    cut(on, alone, others, closed=False)
    assert alone.id in {worker.node for worker in await on.job.newest_world(3)}


@story
async def test_two_that_do_not_reach_each_other_lose_the_later_one_and_the_first_sees_nothing(on: Ground) -> None:
    await on.nodes(3, "--np", "3", *QUICK, ttl_s=CALM_TTL_S)
    world = await on.job.world(1, 3)
    first, second, third = map(on.job.node_of, world)
    cut(on, second, [third])
    await wait(world)
    smaller = await on.job.newest_world(2)
    assert [on.job.node_of(worker) for worker in smaller] == [first, second]
    await first.says(
        rf"{on.host(third).address} is quarantined for 1 s: {on.host(second).address} cannot connect to it"
    )
    assert not said([first], "cannot be reached from this node; if")


@story
async def test_of_two_nodes_the_first_goes_on_alone(on: Ground) -> None:
    await on.nodes(2, "--np", "2", *QUICK, ttl_s=CALM_TTL_S)
    world = await on.job.world(1, 2)
    first, second = map(on.job.node_of, world)
    cut(on, first, [second])
    await wait(world)
    assert [on.job.node_of(worker) for worker in await on.job.newest_world(1)] == [first]
    cut(on, first, [second], closed=False)
    await on.job.newest_world(2)


@story
async def test_a_job_that_needs_both_waits_and_says_so_until_the_way_is_open(on: Ground) -> None:
    await on.nodes(2, "--np", "2:2", *QUICK, ttl_s=CALM_TTL_S)
    world = await on.job.world(1, 2)
    first, second = map(on.job.node_of, world)
    cut(on, first, [second])
    await wait(world)
    why = r"at least 2 nodes must run \(--np\), so the workers wait until it can be reached"
    await first.says(f"workers are stalled, and {second.id} cannot be reached from this node; {why}")
    await second.says(f"workers are stalled, and {first.id} cannot be reached from this node; {why}")
    await asyncio.sleep(LASTS_S)
    cut(on, first, [second], closed=False)
    await first.says("the workers continue, or this node can reach every node of its generation again")
    await goes_on(world)
    assert on.job.newest_generation() == 1


@story
async def test_who_makes_steps_or_waits_for_somebody_that_prepares_is_not_stopped_by_a_closed_way(on: Ground) -> None:
    await on.nodes(2, "--np", "2", *QUICK, ttl_s=CALM_TTL_S)
    world = await on.job.world(1, 2)
    nodes = [on.job.node_of(worker) for worker in world]
    cut(on, nodes[0], [nodes[1]])
    for number in range(6):
        await (wait(world, prepares=True) if number < 3 else step(world, number))
        await asyncio.sleep(LASTS_S / 3)
    await goes_on(world)
    assert on.job.newest_generation() == 1
    assert not said(nodes, "is quarantined")
