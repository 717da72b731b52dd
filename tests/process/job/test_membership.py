"""How a world comes together: who is awaited, in which order, with what environment, and who is kept as a spare."""

from __future__ import annotations

from pathlib import Path
from signal import SIGTERM

from launcher.agent.node_id import MARK
from tests.support.agent_process import endpoints
from tests.support.fake_workers import Worker
from tests.support.job_harness import Job, story


def told(worker: Worker) -> str:
    """The list of endpoints that a worker finds."""
    return Path(worker.env["ELASTIC_ENDPOINTS_FILE"]).read_text()


@story
async def test_np_2_waits_for_two_nodes_and_says_so(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says(rf"joined the job as 127\.0\.0\.1-{MARK}$")
    await first.says(r"1 of 2 nodes is here; waiting for 1 more$")
    assert not job.workers
    second = await job.node("--np", "2")
    for worker in await job.world(1, 2):
        await worker.exits(0)
    for m_id, node in enumerate((first, second)):
        await node.says(rf"generation 1: 2 nodes, world size 2, this is M_id {m_id} \(rank {m_id}\): 2 of 2 nodes are")
        await node.says(r"the job has completed: every worker of generation 1 ended with exit code 0")
        assert await node.exits() == 0


@story
async def test_a_node_that_waits_says_so_again_after_ten_seconds(job: Job) -> None:
    node = await job.node("--np", "2")
    said = await node.says(r"1 of 2 nodes is here")
    place = node.lines.index(said.string) + 1
    await node.says(r"1 of 2 nodes is here", since=place)
    await node.says(r"1 of 2 nodes is here", since=place + 1)


@story
async def test_two_workers_on_each_of_two_nodes_have_the_environment_of_torchrun(job: Job) -> None:
    flags = ("--np", "2", "--nproc-per-node", "2", "--max-restarts", "5")
    first = await job.node(*flags, script=(str(job.script), "--lr", "0.1"))
    await first.says("joined")
    second = await job.node(*flags, script=(str(job.script), "--lr", "0.1"))
    world = await job.world(1, 4)
    assert [worker.node for worker in world] == [first.id, first.id, second.id, second.id]
    for rank, worker in enumerate(world):
        m_id, local = divmod(rank, 2)
        shown = {name: worker.env[name] for name in EXPECTED}
        assert shown == {name: text.format(rank=rank, m_id=m_id, local=local) for name, text in EXPECTED.items()}
        assert worker.env["TORCHELASTIC_RUN_ID"] == worker.env["ELASTIC_JOB_ID"] == job.job_id
        assert worker.argv[1:] == ["--lr", "0.1"]
    masters = {(worker.env["MASTER_ADDR"], worker.env["MASTER_PORT"]) for worker in world}
    assert len(masters) == 1
    agreed = endpoints(first)
    assert agreed == endpoints(second) == endpoints(first, "endpoints.1.log")
    assert len(set(agreed)) == 4
    for worker in world:
        assert worker.env["PADDLE_TRAINER_ENDPOINTS"] == worker.env["ELASTIC_ENDPOINTS"] == ",".join(agreed)
        assert worker.env["PADDLE_CURRENT_ENDPOINT"] == agreed[worker.rank]
    for node in (first, second):
        (worker, _) = (worker for worker in world if worker.node == node.id)
        assert worker.cwd == str(node.folder)
        assert told(worker) == node.text("endpoints.1.log")


EXPECTED = {
    "RANK": "{rank}",
    "LOCAL_RANK": "{local}",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "{m_id}",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_RANK": "{rank}",
    "ROLE_WORLD_SIZE": "4",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "127.0.0.1",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "5",
    "TORCHELASTIC_USE_AGENT_STORE": "False",
    "PADDLE_TRAINER_ID": "{rank}",
    "PADDLE_TRAINERS_NUM": "4",
    "PADDLE_RANK_IN_NODE": "{local}",
    "ELASTIC_GENERATION": "1",
    "OMP_NUM_THREADS": "1",
}


@story
async def test_a_range_starts_with_who_is_there_after_the_settling_window(job: Job) -> None:
    first = await job.node("--np", "2:4")
    await first.says("1 of 2 nodes is here")
    await job.node("--np", "2:4")
    await job.world(1, 2)
    await first.says(r"generation 1: 2 nodes, world size 2.*: 2 of 4 nodes are here")


@story
async def test_survivors_keep_their_order_and_newcomers_are_appended(job: Job) -> None:
    """Rank 0 stays a survivor; the one that leaves makes everybody behind it move up."""
    nodes = []
    for _ in range(3):
        nodes.append(await job.node("--np", "4", "--scale-up-interval", "0"))
        await nodes[-1].says("joined")
    first, second, third = nodes
    fourth = await job.node("--np", "4")
    assert [worker.node for worker in await job.world(1, 4)] == [node.id for node in (first, second, third, fourth)]
    second.signal(SIGTERM)
    assert await second.exits() == 143
    assert [worker.node for worker in await job.world(2, 3)] == [node.id for node in (first, third, fourth)]
    fifth = await job.node("--np", "4")
    assert [worker.node for worker in await job.world(3, 4)] == [node.id for node in (first, third, fourth, fifth)]


@story
async def test_growth_joins_two_newcomers_in_one_restart(job: Job) -> None:
    first = await job.node("--np", "1", "--join-window", "15")
    (worker,) = await job.world(1, 1)
    second = await job.node("--np", "3", "--join-window", "15", "--force")
    await second.says("spare")
    third = await job.node("--np", "3", "--join-window", "15")
    world = await job.world(2, 3)
    assert [worker.node for worker in world] == [first.id, second.id, third.id]
    await first.says(rf"{second.id}, {third.id} join: stopping this node's workers")
    assert worker.ended


@story
async def test_n_n_holds_below_n_and_goes_on_when_a_node_comes(job: Job) -> None:
    first = await job.node("--np", "2:2")
    second = await job.node("--np", "2:2")
    await job.world(1, 2)
    second.signal(SIGTERM)
    assert await second.exits() == 143
    await first.says(r"1 of 2 required nodes is here; waiting for 1 more")
    for worker in job.workers:
        await worker.ends()
    third = await job.node("--np", "2:2")
    world = await job.world(3, 2)
    assert [worker.node for worker in world] == [first.id, third.id]


@story
async def test_a_node_beyond_the_maximum_says_that_it_is_a_spare(job: Job) -> None:
    await job.node("--np", "1")
    await job.world(1, 1)
    spare = await job.node("--np", "1")
    await spare.says("spare: generation 1 runs without this node, which takes over when another node fails")
    (worker,) = job.workers
    await worker.exits(0)
    for node in job.nodes:
        assert await node.exits() == 0
    await spare.says("the job has completed")
    assert len(job.workers) == 1


@story
async def test_a_node_with_another_number_of_workers_is_refused_with_both_numbers(job: Job) -> None:
    await job.node("--np", "1:2", "--nproc-per-node", "2")
    world = await job.world(1, 2)
    other = await job.node("--np", "1:2", "--nproc-per-node", "3")
    line = await other.says("runs 3 workers")
    assert f"job {job.job_id} runs 2 on every node; use --nproc-per-node 2" in line.string
    assert await other.exits() == 3
    assert not any(worker.ended for worker in world), "nobody else is disturbed"


@story
async def test_a_node_with_another_np_says_so_in_one_line_and_follows(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says("joined")
    second = await job.node("--np", "1:4")
    await second.says("this node uses the job's settings: --np is 2 there, 1:4 here$")
    await job.world(1, 2)
    third = await job.node("--np", "3")
    await third.says("this node uses the job's settings: --np is 2 there, 3 here$")
    await third.says("spare")
    assert sum("uses the job's settings" in line for line in third.lines) == 1


@story
async def test_force_makes_this_nodes_np_the_jobs(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says("1 of 2 nodes is here")
    second = await job.node("--np", "3", "--force")
    await second.says("--force: the job's --np 2 becomes 3$")
    await first.says("2 of 3 nodes are here; waiting for 1 more")
    assert not job.workers
    await job.node("--np", "3")
    await job.world(1, 3)


@story
async def test_jobs_whose_names_begin_alike_do_not_touch_each_other(job: Job) -> None:
    one, ten = f"{job.job_id}.1", f"{job.job_id}.10"
    first = await job.node("--job-id", one, "--np", "1")
    second = await job.node("--job-id", ten, "--np", "2")
    (worker,) = await job.world(1, 1, job_id=one)
    assert worker.node == first.id
    await second.says("1 of 2 nodes is here")
    await worker.exits(0)
    assert await first.exits() == 0
    third = await job.node("--job-id", ten, "--np", "2")
    world = await job.world(1, 2, job_id=ten)
    assert {worker.node for worker in world} == {second.id, third.id}


@story
async def test_a_node_that_gives_up_waiting_leaves_with_4_and_writes_no_verdict(job: Job) -> None:
    node = await job.node("--np", "2", "--join-timeout", "1")
    await node.says(r"no generation with this node formed in 1 s \(--join-timeout\); exiting, the job stays open")
    assert await node.exits() == 4
    later = [await job.node("--np", "2") for _ in range(2)]
    await job.world(1, 2)
    assert {worker.node for worker in job.workers} == {node.id for node in later}


@story
async def test_a_node_that_joins_too_soon_says_when_it_is_taken_in(job: Job) -> None:
    """Only the leader remembers when the job grew; the newest generation came of a failure."""
    flags = ("--np", "1:3", "--scale-up-interval", "60", "--max-restarts", "3")
    await job.node(*flags)
    await job.world(1, 1)
    await job.node(*flags)
    await (await job.world(2, 2))[1].exits(1)
    await job.world(3, 2)
    third = await job.node(*flags)
    await third.says("joined")
    line = rf"{third.id} joins in (\d+) s \(--scale-up-interval 60\)"
    said = await third.says(line)
    again = await third.says(line, since=third.lines.index(said.string) + 1)
    assert 7 <= int(said[1]) - int(again[1]) <= 13
    assert 0 < int(again[1]) < int(said[1]) <= 60
    assert not [line for line in third.lines if "to act" in line or "the leader" in line]
