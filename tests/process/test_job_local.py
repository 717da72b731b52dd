"""Several nodes on this machine, with an etcd of their own."""

from __future__ import annotations

from signal import SIGINT, SIGTERM

import psutil

from tests.process.jobs import Job, story
from tests.process.test_job_orders import ctl


@story
async def test_local_nodes_bring_their_own_etcd_and_end_together(job: Job) -> None:
    parent = await job.node("--local_nodes", "2", server=False)
    for worker in await job.world(1, 2):
        await worker.exits(0)
    assert await parent.exits() == 0
    await parent.leaves_nothing()


@story
async def test_one_ctrl_c_ends_all_local_nodes_in_order(job: Job) -> None:
    parent = await job.node("--local_nodes", "2", server=False)
    world = await job.world(1, 2)
    parent.signal(SIGINT)
    assert await parent.exits() == 130
    assert all(worker.ended for worker in world)
    assert sum("left; the job stays open" in line for line in parent.lines) == 2
    await parent.leaves_nothing()


@story
async def test_a_drained_node_does_not_say_that_the_job_has_ended(job: Job) -> None:
    parent = await job.node("--local_nodes", "2")
    await job.world(1, 2)
    assert (await ctl(job, "drain", "0")).code == 0
    await job.newest_world(1)
    parent.signal(SIGTERM)
    assert await parent.exits() == 143


@story
async def test_where_all_local_nodes_were_drained_nothing_is_wrong(job: Job) -> None:
    parent = await job.node("--local_nodes", "2")
    await job.world(1, 2)
    assert (await ctl(job, "drain", "0", "1")).code == 0
    assert await parent.exits() == 0


@story
async def test_a_job_that_completes_without_a_local_node_that_was_killed_has_completed(job: Job) -> None:
    parent = await job.node("--local_nodes", "2", server=False)
    old = await job.world(1, 2)
    agents = [child for child in psutil.Process(parent.process.pid).children() if "launcher" in child.cmdline()]
    agents[0].kill()
    (worker,) = await job.newest_world(1)
    assert worker.pid not in [one.pid for one in old]
    await worker.exits(0)
    assert await parent.exits() == 0
