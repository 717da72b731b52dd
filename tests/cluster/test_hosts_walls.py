"""Firewalls and cut ways between agents that live: what does not have to stop does not, and all come together again."""

from __future__ import annotations

import asyncio
import os
from signal import SIGKILL

import pytest

from elastic.core.membership.memory import LINK_PATIENCE_S
from tests.cluster import hosts
from tests.cluster.ground import GROWING, Ground, goes_on, said, story
from tests.support.job_harness import CALM_TTL_S, LONG_TTL_S, QUICK_TTL_S

REASON = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "hosts are here"),
]

THREE = ("--np", "3", *GROWING)
FALSE_ALARM = "(its process is gone)"


@story
async def test_a_firewall_that_resets_costs_one_restart_and_then_only_leases_count(on: Ground) -> None:
    await on.nodes(3, *THREE, ttl_s=CALM_TTL_S)
    world = await on.job.world(1, 3)
    first, second, rejected = map(on.job.node_of, world)
    host = on.host(rejected).address
    await on.until_linked(first, rejected)

    await on.reject(rejected, [first, second])
    await first.says(f"{rejected.id} registered again.*failures on {host} are detected only when leases end")
    world = await on.job.newest_world(3)
    assert rejected.id in {worker.node for worker in world}
    restarts = world[0].generation
    assert restarts <= 3
    await first.says(
        rf"{rejected.id}: no connection to its agent at {host}:\d+ \(connection refused\); it has exited or a"
    )

    await on.trust([first, second])
    await on.until_linked(first, rejected)
    await on.reject(rejected, [first, second])
    await on.until_linked(first, rejected, linked=False)
    await goes_on(world)

    await on.trust([first, second])
    first.signal(SIGKILL)
    world = await on.job.newest_world(2)
    leader, other = map(on.job.node_of, world)
    assert leader is second
    await on.until_linked(leader, other)
    await on.reject(rejected, [second])
    await on.until_linked(second, rejected, linked=False)
    await goes_on(world)
    for node in (first, second):
        assert len([line for line in node.lines if "nodes, world" in line and f"{rejected.id} was lost" in line]) == 1
    assert on.job.newest_generation() == world[0].generation


@story
async def test_a_node_that_cannot_be_dialled_joins_and_is_named_once_with_its_address_and_the_reason(
    on: Ground,
) -> None:
    first = await on.node("--np", "1:2", *GROWING, ttl_s=CALM_TTL_S)
    await on.job.world(1, 1)
    host = on.cluster.host()
    host.drop(on.host(first))
    late = await on.node_at(host, "--np", "1:2", *GROWING, ttl_s=CALM_TTL_S)
    world = await on.job.newest_world(2)
    assert [worker.node for worker in world] == [first.id, late.id]
    place = rf"{host.address}:{on.port(late)}"
    await first.says(
        rf"{late.id}: no connection to its agent at {place} \(timed out\); it has exited or a firewall is in"
    )
    await asyncio.sleep(LINK_PATIENCE_S)  # In this time it is dialled again, which nobody tells a second time.
    assert len(said([first], "no connection to its agent")) == 1


@story
async def test_a_member_cut_off_from_all_is_left_behind_and_comes_back(on: Ground) -> None:
    await cut_off(on, 2)


@story
async def test_the_first_cut_off_from_all_is_left_behind_and_comes_back(on: Ground) -> None:
    await cut_off(on, 0)


async def cut_off(on: Ground, who: int) -> None:
    """Its cable is pulled: the others go on without it, and take it in again."""
    nodes = await on.nodes(3, *THREE, ttl_s=QUICK_TTL_S)
    world = await on.job.world(1, 3)
    alone = on.job.node_of(world[who])
    on.host(alone).cut()
    again = await on.job.newest_world(2)
    assert alone.id not in {worker.node for worker in again}
    on.host(alone).mend()
    last = await on.job.newest_world(3)
    assert alone.id in {worker.node for worker in last}
    assert not said(nodes, FALSE_ALARM)


@story
async def test_etcd_that_one_member_cannot_reach_stops_nothing(on: Ground) -> None:
    await without_etcd(on, 1, both=True)


@story
async def test_etcd_that_does_not_reach_the_first_stops_nothing(on: Ground) -> None:
    """In one direction: etcd hears it."""
    await without_etcd(on, 0, both=False)


async def without_etcd(on: Ground, who: int, *, both: bool) -> None:
    """The way between etcd and one node is cut for longer than a lease."""
    nodes = await on.nodes(3, *THREE, ttl_s=QUICK_TTL_S)
    world = await on.job.world(1, 3)
    alone = on.job.node_of(world[who])
    on.etcd.drop(on.host(alone))
    if both:
        on.host(alone).drop(on.etcd)
    await alone.says("etcd does not answer")
    await asyncio.sleep(2 * QUICK_TTL_S)  # The cut itself: in one direction etcd may hear it, and its lease goes on.
    await goes_on(world)
    on.etcd.let(on.host(alone))
    if both:
        on.host(alone).let(on.etcd)
    await alone.says("etcd answers again|registered again")
    await goes_on(world)
    assert not said(nodes, FALSE_ALARM)
    assert on.job.newest_generation() == 1


@story
async def test_a_way_between_the_first_and_a_member_that_is_cut_stops_nothing(on: Ground) -> None:
    await without_link(on, both=True)


@story
async def test_a_way_from_the_first_to_a_member_that_is_cut_in_one_direction_stops_nothing(on: Ground) -> None:
    await without_link(on, both=False)


async def without_link(on: Ground, *, both: bool) -> None:
    """Both reach etcd, and the kernel gives their link up."""
    nodes = await on.nodes(3, *THREE, ttl_s=LONG_TTL_S)
    world = await on.job.world(1, 3)
    first, member = on.job.node_of(world[0]), on.job.node_of(world[2])
    await on.until_linked(first, member)
    on.host(first).drop(on.host(member))
    if both:
        on.host(member).drop(on.host(first))
    await on.until_linked(first, member, linked=False)
    await goes_on(world)
    on.host(first).let(on.host(member))
    if both:
        on.host(member).let(on.host(first))
    await on.until_linked(first, member)
    await goes_on(world)
    assert not said(nodes, FALSE_ALARM)
    assert on.job.newest_generation() == 1
    member.signal(SIGKILL)
    await first.says(f"{member.id} was lost \\(its process is gone\\)")
    await on.job.newest_world(2)
