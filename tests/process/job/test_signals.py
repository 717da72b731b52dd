"""Signals to an agent: it leaves in order and the job goes on; the second ends it at once."""

from __future__ import annotations

from signal import SIGHUP, SIGINT, SIGTERM

from tests.support.job_harness import Job, story


@story
async def test_sigterm_drains_a_node_and_the_others_go_on_in_a_new_generation(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says("joined")
    second = await job.node("--np", "2")
    old = await job.world(1, 2)
    first.signal(SIGTERM)
    assert await first.exits() == 143
    await first.says("SIGTERM: leaving gracefully; a second signal ends the node immediately")
    await first.says("left; the job stays open")
    await second.says(rf"generation 2: 1 node, world size 1, this is M_id 0 \(rank 0\): {first.id} drains")
    (worker,) = await job.world(2, 1)
    assert not any(worker.runs for worker in old)
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0", "a drain is free"
    await worker.exits(0)
    assert await second.exits() == 0


@story
async def test_a_worker_that_needs_its_grace_to_save_gets_it_on_a_drain(job: Job) -> None:
    """It ignores SIGTERM, as one that is busy saving, and then exits by itself: nobody killed it."""
    first = await job.node("--np", "2", "--stop-timeout", "60", "--failure-stop-timeout", "1")
    second = await job.node("--np", "2", "--stop-timeout", "60", "--failure-stop-timeout", "1")
    (busy, _) = await job.world(1, 2)
    await busy.obeys("ignore", SIGTERM)
    other = next(node for node in (first, second) if node.id != busy.node)
    other.signal(SIGTERM)
    assert await other.exits() == 143
    await busy.obeys("print", "saved")
    await busy.exits(0)
    (worker,) = await job.world(2, 1)
    log = next(node for node in (first, second) if node is not other).text("workerlog.0")
    assert "[SignalInfo: *** SIGTERM" in log
    assert "==== rank 0 gen 1 ended: stopped by the launcher, exit 0 ====" in log
    await worker.exits(0)


@story
async def test_all_agents_told_to_leave_at_once_leave_and_the_job_stays_open(job: Job) -> None:
    nodes = [await job.node("--np", "3", "--stop-timeout", "1000") for _ in range(3)]
    old = await job.world(1, 3)
    for node in nodes:
        node.signal(SIGTERM)
    assert [await node.exits() for node in nodes] == [143, 143, 143], "workers end at SIGTERM: nobody waits a grace"
    assert not any(worker.runs for worker in old)
    later = await job.node("--np", "1")
    (worker,) = await job.newest_world(1)
    assert worker.node == later.id
    assert worker.generation > 1
    await worker.exits(0)
    assert await later.exits() == 0


@story
async def test_ctrl_c_while_waiting_for_nodes_ends_with_130(job: Job) -> None:
    node = await job.node("--np", "2")
    await node.says("1 of 2 nodes is here")
    node.signal(SIGINT)
    assert await node.exits() == 130


@story
async def test_ctrl_c_while_waiting_for_etcd_ends_with_130(job: Job) -> None:
    node = await job.node("--elastic-server", "127.0.0.1:1")
    await node.says("waiting for etcd at 127.0.0.1:1")
    node.signal(SIGINT)
    assert await node.exits() == 130


@story
async def test_a_second_ctrl_c_ends_a_node_at_once_whatever_its_workers_do(job: Job) -> None:
    node = await job.node("--np", "1", "--stop-timeout", "100")
    (worker,) = await job.world(1, 1)
    await worker.obeys("ignore", SIGTERM)
    await worker.obeys("child", True)
    node.signal(SIGINT)
    await node.says("stopping this node's workers")
    assert not worker.ended
    node.signal(SIGINT)
    assert await node.exits() == 130
    await node.leaves_nothing()


@story
async def test_a_hang_up_is_a_drain_too(job: Job) -> None:
    node = await job.node("--np", "1")
    await job.world(1, 1)
    node.signal(SIGHUP)
    assert await node.exits() == 129
    await node.leaves_nothing()


@story
async def test_a_spare_leaves_without_disturbing_anybody(job: Job) -> None:
    await job.node("--np", "1")
    (worker,) = await job.world(1, 1)
    spare = await job.node("--np", "1")
    await spare.says("spare")
    spare.signal(SIGTERM)
    assert await spare.exits() == 143
    assert not worker.ended
    assert len(job.workers) == 1
