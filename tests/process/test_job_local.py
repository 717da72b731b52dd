"""Several nodes on this machine, with an etcd of their own."""

from __future__ import annotations

from signal import SIGINT

from tests.process.jobs import Job, story


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
