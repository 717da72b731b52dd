"""The end of a job, nodes that come after it, and jobs that are run again."""

from __future__ import annotations

import asyncio
from signal import SIGTERM

from tests.support.job_harness import Job, story

ENDED = r"^Job {job} {how} (just now|\d+ seconds? ago) \(run {run}, generation \d+\)"
AGAIN = r"^To run it again, start it with --rerun; for another job, use another --job-id\.$"


@story
async def test_a_node_that_comes_after_the_end_says_when_and_how_it_ended_and_exits_0(job: Job) -> None:
    first = await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    await worker.exits(0)
    assert await first.exits() == 0
    late = await job.node("--np", "1")
    assert await late.exits() == 0
    await late.says(
        ENDED.format(job=job.job_id, how="completed", run=1) + ": every worker of generation 1 ended with exit code 0"
    )
    await late.says(AGAIN)
    assert len(job.workers) == 1


@story
async def test_a_node_that_comes_after_a_failure_exits_1_and_tells_the_cause(job: Job) -> None:
    first = await job.node("--np", "1", "--max-restarts", "0")
    (worker,) = await job.world(1, 1)
    await worker.obeys("complain", "no such data")
    await worker.exits(9)
    assert await first.exits() == 1
    late = await job.node("--np", "1", "--max-restarts", "0")
    assert await late.exits() == 1
    await late.says(ENDED.format(job=job.job_id, how="failed", run=1) + ": no restart is left")
    await late.says(r"Root cause: rank 0 on host 127\.0\.0\.1 .*: exit 9\.$")
    await late.says(r"^    no such data$")
    await late.says(AGAIN)


@story
async def test_rerun_typed_on_both_nodes_runs_the_job_again_once(job: Job) -> None:
    for node in [await job.node("--np", "2") for _ in range(2)]:
        await node.says("joined")
    for worker in await job.world(1, 2):
        await worker.exits(0)
    for node in job.nodes:
        assert await node.exits() == 0
    again = await asyncio.gather(*(job.node("--np", "2", "--rerun") for _ in range(2)))
    world = await job.newest_world(2)
    assert world[0].generation > 1, "no number is used twice"
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in world} == {"0"}
    said = [line for node in again for line in node.lines if "--rerun: run 2 of the job begins" in line]
    assert said
    for worker in world:
        await worker.exits(0)
    for node in again:
        assert await node.exits() == 0
        await node.says("the job has completed")
    assert len(job.workers) == 4
    late = await job.node("--np", "2")
    assert await late.exits() == 0
    await late.says(ENDED.format(job=job.job_id, how="completed", run=2))


@story
async def test_rerun_of_a_failed_job_begins_with_a_full_budget(job: Job) -> None:
    first = await job.node("--np", "1", "--max-restarts", "0")
    (worker,) = await job.world(1, 1)
    await worker.exits(1)
    assert await first.exits() == 1
    again = await job.node("--np", "1", "--max-restarts", "1", "--rerun")
    (worker,) = await job.newest_world(1)
    await worker.exits(1)
    (worker,) = await job.newest_world(1)
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "1"
    await worker.exits(0)
    assert await again.exits() == 0


@story
async def test_rerun_of_a_running_job_is_a_plain_join(job: Job) -> None:
    await job.node("--np", "2")
    await job.node("--np", "2", "--rerun")
    world = await job.world(1, 2)
    spare = await job.node("--np", "2", "--rerun")
    await spare.says("spare")
    assert not any(worker.ended for worker in world)


@story
async def test_no_member_that_is_done_is_missed_and_nobody_leaves_before_the_verdict(job: Job) -> None:
    """Promise 14: after the first ok a newcomer changes nothing."""
    nodes = [await job.node("--np", "3", "--scale-up-interval", "0") for _ in range(3)]
    world = await job.world(1, 3)
    leaver = job.node_of(world[2])
    leaver.signal(SIGTERM)
    assert await leaver.exits() == 143
    (first, second) = await job.world(2, 2)
    await first.exits(0)
    done = job.node_of(first)
    await done.says("1 of 2 nodes done; waiting for the others")
    newcomer = await job.node("--np", "3", "--join-window", "0")
    await newcomer.says("spare")
    assert not second.ended
    await second.exits(0)
    for node in (*nodes, newcomer):
        if node is not leaver:
            assert await node.exits() == 0
