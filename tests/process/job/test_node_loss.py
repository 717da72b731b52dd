"""Nodes that vanish without a word, freeze, or lose their nursery."""

from __future__ import annotations

import os
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

from tests.support.job_harness import QUICK_TTL_S, Job, story


@story
async def test_a_node_killed_with_sigkill_leaves_nothing_and_the_survivors_act_though_no_worker_failed(
    job: Job,
) -> None:
    nodes = [await job.node("--np", "3", ttl_s=QUICK_TTL_S) for _ in range(3)]
    world = await job.world(1, 3)
    victim = world[1]
    await victim.obeys("child", False)
    await victim.obeys("child", True)
    dead = job.node_of(victim)
    await dead.killed()
    others = [node for node in nodes if node is not dead]
    for node in others:
        await node.says(rf"generation 2: 2 nodes, world size 2.*: {dead.id} was lost \(its process is gone\)$")
    again = await job.world(2, 2)
    assert [worker.node for worker in again] == [world[0].node, world[2].node], "survivors keep their order"
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in again} == {"0"}, "a loss is free"
    for worker in again:
        await worker.exits(0)
    assert [await node.exits() for node in others] == [0, 0]


@story
async def test_the_first_node_killed_is_replaced_by_the_next_in_line(job: Job) -> None:
    nodes = [await job.node("--np", "3", ttl_s=QUICK_TTL_S) for _ in range(3)]
    world = await job.world(1, 3)
    dead = job.node_of(world[0])
    await dead.killed()
    again = await job.world(2, 2)
    assert [worker.node for worker in again] == [world[1].node, world[2].node]
    assert again[0].env["MASTER_PORT"] != world[0].env["MASTER_PORT"]
    assert len(nodes) == 3


@story
async def test_two_nodes_killed_at_once_cost_one_world(job: Job) -> None:
    for _ in range(3):
        await job.node("--np", "3", ttl_s=QUICK_TTL_S)
    world = await job.world(1, 3)
    first, second = job.node_of(world[0]), job.node_of(world[1])
    first.signal(SIGKILL)
    second.signal(SIGKILL)
    (worker,) = await job.newest_world(1)
    assert worker.node == world[2].node
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0"


@story
async def test_a_spare_takes_over_when_a_member_dies(job: Job) -> None:
    await job.node("--np", "2", ttl_s=QUICK_TTL_S)
    await job.node("--np", "2", ttl_s=QUICK_TTL_S)
    world = await job.world(1, 2)
    spare = await job.node("--np", "2", ttl_s=QUICK_TTL_S)
    await spare.says("spare")
    await job.node_of(world[0]).killed()
    again = await job.world(2, 2)
    assert [worker.node for worker in again] == [world[1].node, spare.id]


@story
async def test_a_frozen_node_has_no_worker_left_when_another_takes_its_place_and_joins_again_when_it_thaws(
    job: Job,
) -> None:
    """The agent stands still, the nursery does not: it knows until when its workers may run."""
    for _ in range(2):
        await job.node("--np", "2", "--scale-up-interval", "0", ttl_s=QUICK_TTL_S)
    world = await job.world(1, 2)
    frozen = job.node_of(world[0])
    frozen.signal(SIGSTOP)
    await world[0].ends()
    (worker,) = await job.world(2, 1)
    assert worker.node == world[1].node
    frozen.signal(SIGCONT)
    await frozen.says("lease expired")
    await frozen.says("registered again")
    again = await job.world(3, 2)
    assert [worker.node for worker in again] == [world[1].node, world[0].node]
    for worker in again:
        await worker.exits(0)
    for node in job.nodes:
        assert await node.exits() == 0
    assert not any("the fork server died" in line for line in frozen.lines), "it did its duty and was heard"


@story
async def test_a_spare_does_not_start_while_workers_of_a_frozen_node_may_run(job: Job) -> None:
    """The whole world is frozen; `play` sees to it that no two worlds run at once."""
    first = await job.node("--np", "1", "--etcd-outage-timeout", "3", ttl_s=QUICK_TTL_S)
    (old,) = await job.world(1, 1)
    spare = await job.node("--np", "1", "--etcd-outage-timeout", "3", ttl_s=QUICK_TTL_S)
    await spare.says("spare")
    first.signal(SIGSTOP)
    (worker,) = await job.world(2, 1)
    assert worker.node == spare.id
    assert old.ended
    await spare.says(
        rf"{first.id} disappeared without deregistering and may still run for \d s \(--etcd-outage-timeout 3\)"
    )
    first.signal(SIGCONT)
    await first.says("spare")


@story
async def test_the_nursery_killed_costs_its_workers_and_the_job_goes_on(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    world = await job.world(1, 2)
    hit = job.node_of(world[1])
    os.kill(hit.nursery(), SIGKILL)
    await hit.says("the fork server died, and its workers with it; starting another")
    again = await job.world(2, 2)
    assert [worker.node for worker in again] == [worker.node for worker in world]
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in again} == {"0"}, "the machine's fault is free"
    for worker in again:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0]


@story
async def test_the_last_node_killed_and_the_command_typed_again_goes_on_without_the_outage_limit(job: Job) -> None:
    """The lock of the dead node is free, so this machine knows that nothing of it runs."""
    first = await job.node("--np", "1", ttl_s=QUICK_TTL_S)
    await job.world(1, 1)
    await first.killed()
    second = await job.node("--np", "1", ttl_s=QUICK_TTL_S)
    (worker,) = await job.newest_world(1)
    assert worker.node == second.id
    assert worker.generation > 1
    await second.says(f"{first.id} ran on this host, and all its processes have exited")
    left = list((job.folder / "tmp").glob("elastic-node-*"))
    assert [str(path) for path in left] == [os.path.dirname(worker.env["ELASTIC_PROGRESS_FILE"])]


@story
async def test_agent_and_nursery_killed_at_once_take_the_worker_with_them(job: Job) -> None:
    node = await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    await worker.obeys("ignore", SIGTERM)
    nursery = node.nursery()
    node.signal(SIGKILL)
    os.kill(nursery, SIGKILL)
    await worker.ends()
    await node.leaves_nothing()
