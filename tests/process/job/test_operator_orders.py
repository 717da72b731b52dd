"""An operator steers a job on a real etcd: `elastic-ctl scale`, `drain`, `stop`."""

from __future__ import annotations

import asyncio
from signal import SIGKILL, SIGTERM

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, Put
from elastic.store.etcd import EtcdStore
from tests.support.awaited_events import LIMIT_S
from tests.support.ctl_commands import ran_ctl
from tests.support.job_harness import QUICK_TTL_S, Job, story
from tests.support.worker_messages import listens


async def put(job: Job, key: str, value: bytes) -> None:
    """Write a key, as nobody of the job would."""
    store = EtcdStore((job.etcd.endpoint,))
    try:
        await store.txn((), (Put(key, value),))
    finally:
        await store.close()


async def events(job: Job) -> str:
    return (await ran_ctl(job, "events")).out


@story
async def test_scale_takes_in_a_spare_and_makes_one_again(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "1:1", "--scale-up-interval", "0")
    await job.world(1, 1)
    await job.told.until(lambda: any("spare: " in line for node in job.nodes for line in node.lines), "a spare")
    ran = await ran_ctl(job, "scale", "--np", "1:2")
    said = f"{job.job_id}: --np 1 becomes 1:2; 1 node runs: 1 waiting node will join\n"
    assert ran == (0, said, "")
    await job.newest_world(2)
    assert (await ran_ctl(job, "scale", "--np", "1:2")).out == f"{job.job_id}: --np is 1:2 already\n"
    ran = await ran_ctl(job, "scale", "--np", "1")
    assert ran.out.endswith("2 nodes run: 1 of them will stop and wait as a spare\n")
    await job.newest_world(1)
    assert "action: elastic-ctl scale: --np 1:2 becomes 1" in await events(job)


@story
async def test_a_drained_node_saves_leaves_with_exit_code_0_and_the_others_go_on(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2")
    old = await job.world(1, 2)
    for worker in old:
        await worker.obeys("ignore", SIGTERM)
        await listens(worker)
        worker.order("leave", 143)
    leaving = job.node_of(old[0])
    ran = await ran_ctl(job, "drain", "0")
    assert (ran.code, ran.err) == (0, "")
    first, *later = ran.out.splitlines()
    assert first == f"{job.job_id}: draining {leaving.id}"
    assert f"{leaving.id} has left" in later  # Before or after the next world has begun.
    assert await leaving.exits() == 0
    await leaving.says(r"left \(elastic-ctl drain by me@.*\); the job stays open")
    (worker,) = await job.newest_world(1)
    assert worker.node == old[1].node
    assert "SignalInfo" not in leaving.text("workerlog.0")
    ran = await ran_ctl(job, "drain", leaving.id)
    assert ran.code == 2
    assert f"'{leaving.id}' is not a node, node rank (M_id) or host of this job; its nodes: {old[1].node}" in ran.err


@story
async def test_a_drain_with_a_deadline_ends_workers_that_take_longer(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2", "--save-timeout", "100", "--stop-timeout", "100")
    old = await job.world(1, 2)
    for worker in old:
        await worker.obeys("ignore", SIGTERM)
        await listens(worker)
    leaving = job.node_of(old[1])
    ran = await ran_ctl(job, "drain", leaving.id, "--deadline", "4")
    assert ran.code == 0
    assert await leaving.exits() == 0
    await leaving.says(r"deadline reached \(.*elastic-ctl drain by me@.*\): killing this node's workers")


@story
async def test_stop_lets_the_workers_save_and_ends_every_agent_with_0(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2")
    for worker in await job.world(1, 2):
        await worker.obeys("ignore", SIGTERM)
        await listens(worker)
        worker.order("leave", 143)
    ran = await ran_ctl(job, "stop")
    assert (ran.code, ran.err) == (0, "")
    first, last = ran.out.splitlines()
    assert first == f"{job.job_id}: the workers of 2 nodes will save and exit, then their agents exit"
    assert "was stopped just now (run 1, generation 2): elastic-ctl stop by me@" in last
    assert [await node.exits() for node in job.nodes] == [0, 0]
    for node in job.nodes:
        (log,) = node.logs().glob("workerlog.*")
        assert "asked to save and to exit for a planned change: elastic-ctl stop by me@" in log.read_text()
        assert any("the job was stopped: elastic-ctl stop by me@" in line for line in node.lines)
    late = await job.node("--np", "2")
    assert await late.exits() == 0
    assert any("was stopped" in line for line in late.lines)
    ran = await ran_ctl(job, "scale", "--np", "3")
    assert ran.code == 1
    assert "was stopped" in ran.err
    assert (await ran_ctl(job, "stop")).code == 0


@story
async def test_stop_now_ends_workers_that_would_take_long_to_save(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2", "--save-timeout", "100", "--stop-timeout", "100")
    for worker in await job.world(1, 2):
        await worker.obeys("ignore", SIGTERM)
        await listens(worker)
    assert (await ran_ctl(job, "stop", "--no-wait")).code == 0
    await job.nodes[0].says("elastic-ctl stop by me@.*: stopping this node's workers")
    first, last = (await ran_ctl(job, "stop", "--now")).out.splitlines()
    assert first == f"{job.job_id} is stopped; the workers of 2 nodes are being stopped"
    assert "was stopped just now (run 1, generation 2): elastic-ctl stop --now by me@" in last
    assert [await node.exits() for node in job.nodes] == [0, 0]


@story
async def test_a_stopped_job_runs_again_with_rerun(job: Job) -> None:
    node = await job.node("--np", "1")
    await job.world(1, 1)
    assert (await ran_ctl(job, "stop", "--now")).code == 0
    await node.exits()
    await job.node("--np", "1", "--rerun")
    (worker,) = await job.newest_world(1)
    await worker.exits(0)
    assert await job.nodes[1].exits() == 0


@story
async def test_stop_writes_the_verdict_where_all_agents_die_meanwhile(job: Job) -> None:
    node = await job.node("--np", "1", "--save-timeout", "100", "--stop-timeout", "100", ttl_s=QUICK_TTL_S)
    (worker,) = await job.world(1, 1)
    await worker.obeys("ignore", SIGTERM)
    await listens(worker)
    stopping = asyncio.create_task(ran_ctl(job, "stop"))
    await node.says("elastic-ctl stop by me@.*: stopping this node's workers")
    node.signal(SIGKILL)
    ran = await stopping
    assert ran.code == 0
    assert "was stopped just now (run 1, generation 2): elastic-ctl stop by me@" in ran.out
    late = await job.node("--np", "1")
    assert await late.exits() == 0
    assert len(job.workers) == 1


@story
async def test_a_job_whose_spec_somebody_damaged_can_be_stopped_at_once(job: Job) -> None:
    node = await job.node("--np", "1")
    await job.world(1, 1)
    key = JobKeys(job.job_id).spec
    await put(job, key, b"{bad")
    ran = await ran_ctl(job, "stop")
    assert ran.code == 1
    assert f"cannot parse {key}, so no node could save" in ran.err
    ran = await ran_ctl(job, "stop", "--now")
    assert (ran.code, ran.err) == (0, "")
    assert "was stopped just now (run 1, generation 1): elastic-ctl stop --now by me@" in ran.out
    assert await node.exits() == 0


@story
async def test_a_save_goes_on_although_the_lease_of_its_node_ends_early(job: Job) -> None:
    node = await job.node("--np", "1", "--save-timeout", "100", "--stop-timeout", "100")
    (worker,) = await job.world(1, 1)
    await worker.obeys("ignore", SIGTERM)
    await listens(worker)
    stopping = asyncio.create_task(ran_ctl(job, "stop"))
    await node.says("elastic-ctl stop by me@.*: stopping this node's workers")
    store = EtcdStore((job.etcd.endpoint,))
    try:
        members = KeyRange.prefix(JobKeys(job.job_id).members)
        listing = await store.list(members)
        await store.revoke(listing.entries[0].lease)
        async with asyncio.timeout(LIMIT_S):
            async for batch in store.watch([members], listing.revision + 1):
                if any(not change.deleted for change in batch.changes):
                    break
    finally:
        await store.close()
    assert not worker.ended
    worker.order("leave", 143)
    assert await node.exits() == 0
    assert (await stopping).code == 0
    (log,) = node.logs().glob("workerlog.*")
    assert "SIGKILL" not in log.read_text()
    assert "no node is left" not in await events(job)


@story
async def test_an_order_by_a_name_without_end_is_carried_out(job: Job) -> None:
    node = await job.node("--np", "1")
    await job.world(1, 1)
    ran = await ran_ctl(job, "stop", "--now", name="x" * 400)
    assert (ran.code, ran.err) == (0, "")
    assert await node.exits() == 0
    assert f"stop --now by {'x' * 64}@" in ran.out
