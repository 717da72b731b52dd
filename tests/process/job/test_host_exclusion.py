"""A host whose workers keep failing, with real agents: loopback addresses are its hosts."""

from __future__ import annotations

import asyncio
from signal import SIGKILL

from tests.support.agent_process import Node
from tests.support.fake_workers import Worker
from tests.support.job_harness import Job, story

COOLDOWN_S = 3


async def three_hosts(job: Job, *flags: str) -> tuple[list[Node], list[Worker]]:
    """One node on each of three hosts, and their first world."""
    nodes = [await job.node("--host", f"127.0.0.{number}", "--scale-up-interval", "0", *flags) for number in (1, 2, 3)]
    return nodes, await job.world(1, 3)


async def fails_alone(job: Job, node: Node, world: list[Worker]) -> None:
    """The worker of this node fails by itself."""
    await next(worker for worker in world if worker.node == node.id).exits(1)


@story
async def test_a_host_whose_workers_keep_failing_is_kept_out_and_comes_back_by_itself(job: Job) -> None:
    """Every node says so, also one that is started again there, and the job continues with no restart left."""
    nodes, world = await three_hosts(job, "--np", "3", "--max-restarts", "1", "--host-cooldown", str(COOLDOWN_S))
    bad = nodes[1]
    await fails_alone(job, bad, world)
    await fails_alone(job, bad, await job.newest_world(3))
    smaller = await job.newest_world(2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in smaller} == {"1"}
    assert bad.id not in {worker.node for worker in smaller}
    why = r"its workers failed 2 times in a row \(exit 1\)"
    await bad.says(rf"quarantined until \d\d:\d\d:\d\d UTC: {why}; it rejoins automatically")
    for node in (nodes[0], nodes[2]):
        await node.says(rf"2 nodes, .*: 127\.0\.0\.2 is quarantined for {COOLDOWN_S} s: {why}")
        await node.says(r"127\.0\.0\.2 is quarantined; 1 of 1 restarts used; the job continues")
    await bad.killed()
    again = await job.node("--host", "127.0.0.2", "--np", "3", "--max-restarts", "1")
    await again.says(rf"quarantined until .* {why}; it rejoins automatically")
    back = await job.newest_world(3)
    assert again.id in {worker.node for worker in back}
    await asyncio.gather(*(worker.exits(0) for worker in back))
    assert [await node.exits() for node in (nodes[0], again, nodes[2])] == [0, 0, 0]


@story
async def test_a_host_that_is_kept_out_is_taken_back_at_once_when_the_job_cannot_run_without_it(job: Job) -> None:
    nodes, world = await three_hosts(job, "--np", "2:3", "--host-cooldown", "600")
    bad = nodes[2]
    await fails_alone(job, bad, world)
    await fails_alone(job, bad, await job.newest_world(3))
    await job.newest_world(2)
    nodes[0].signal(SIGKILL)
    said = await bad.says(r"generation (\d+): 2 nodes, .* was lost")
    assert bad.id in {worker.node for worker in await job.world(int(said[1]), 2)}
