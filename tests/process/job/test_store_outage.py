"""An etcd that is late, stands still, goes away, or comes back empty, under jobs that run."""

from __future__ import annotations

import asyncio

import psutil

from tests.support.etcd_users import add_users
from tests.support.job_harness import QUICK_TTL_S, Job, story, story_with_its_own_etcd


@story
async def test_without_etcd_an_agent_ends_with_4_after_its_connect_timeout_and_says_what_to_look_at(job: Job) -> None:
    node = await job.node("--elastic-server", "127.0.0.1:1", "--connect-timeout", "2")
    assert await node.exits() == 4
    await node.says(
        r"^elastic-launch: error: no etcd within 2 s at 127\.0\.0\.1:1 \(.*: Connection refused\); "
        r".*--connect-timeout waits longer$"
    )
    *_, last = node.text("launcher.log").splitlines()
    assert last.split(" ", 2)[2] == node.lines[-1].removeprefix("elastic-launch: error: ")


@story_with_its_own_etcd
async def test_an_etcd_that_comes_in_time_is_waited_for(job: Job) -> None:
    job.etcd.kill()
    node = await job.node("--np", "1")
    await node.says(rf"waiting for etcd at {job.etcd.endpoint} \(.*\); giving up in \d\d s")
    assert "waiting for etcd at" in node.text("launcher.log")
    job.etcd.start(wait=False)
    (worker,) = await job.world(1, 1)
    await worker.exits(0)
    assert await node.exits() == 0


@story_with_its_own_etcd
async def test_an_etcd_that_stands_still_for_a_second_stops_nothing(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    world = await job.world(1, 2)
    job.etcd.freeze()
    await asyncio.sleep(1)  # What happens to the job, and not a wait for something.
    job.etcd.thaw()
    for worker in world:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0]
    assert len(job.workers) == 2


@story_with_its_own_etcd
async def test_an_etcd_that_is_restarted_with_its_data_stops_nothing_that_runs(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    world = await job.world(1, 2)
    job.etcd.kill()
    for node in nodes:
        await node.says(r"etcd does not answer \(.*\); workers continue while their lease is valid")
    job.etcd.start(wait=False)
    for node in nodes:
        await node.says("etcd answers again")
    assert not any(worker.ended for worker in world)
    for worker in world:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0]
    assert len(job.workers) == 2


@story_with_its_own_etcd
async def test_an_end_while_etcd_is_away_is_recorded_when_it_is_back(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    world = await job.world(1, 2)
    job.etcd.kill()
    for worker in world:
        await worker.exits(0)
    for node in nodes:
        await node.says("etcd does not answer")
    job.etcd.start(wait=False)
    assert [await node.exits() for node in nodes] == [0, 0]
    assert len(job.workers) == 2


@story_with_its_own_etcd
async def test_an_etcd_away_for_longer_than_the_limit_costs_the_workers_and_the_job_resumes_by_itself(job: Job) -> None:
    flags = ("--np", "2", "--etcd-outage-timeout", "2")
    nodes = [await job.node(*flags, ttl_s=QUICK_TTL_S) for _ in range(2)]
    world = await job.world(1, 2)
    job.etcd.kill()
    for worker in world:
        await worker.ends()
    for node in nodes:
        await node.says("lease expired")
    job.etcd.start(wait=False)
    again = await job.newest_world(2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in again} == {"0"}, "an outage is free"
    for worker in again:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0]


@story_with_its_own_etcd
async def test_an_etcd_that_comes_back_empty_costs_one_restart_and_the_job_forms_again(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    world = await job.world(1, 2)
    job.etcd.kill()
    job.etcd.lose_data()
    job.etcd.start(wait=False)
    for worker in world:
        await worker.ends()
    again = await job.newest_world(2)
    assert again[0].env["ELASTIC_FENCE"] != world[0].env["ELASTIC_FENCE"]
    assert {worker.node for worker in again} == {node.id for node in nodes}
    for worker in again:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0]


@story_with_its_own_etcd
async def test_a_node_that_waits_for_others_outlives_a_restart_of_etcd(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says("1 of 2 nodes is here")
    job.etcd.kill()
    await first.says("etcd does not answer")
    job.etcd.start(wait=False)
    await first.says("etcd answers again")
    await job.node("--np", "2")
    await job.world(1, 2)


@story_with_its_own_etcd
async def test_with_a_user_and_a_password_in_a_file_a_job_runs_and_workers_do_not_get_it(job: Job) -> None:
    await add_users(job.etcd.endpoint)
    file = job.folder / "password"
    file.write_text("job-secret\n")
    flags = ("--np", "2", "--etcd-user", "job")
    first = await job.node(*flags, "--etcd-password-file", str(file))
    second = await job.node(*flags, environ={"ELASTIC_ETCD_PASSWORD": "job-secret"})
    for worker in await job.world(1, 2):
        assert "job-secret" not in "".join(worker.env.values())
        await worker.exits(0)
    assert [await node.exits() for node in (first, second)] == [0, 0]
    for node in (first, second):
        assert "job-secret" not in "".join((*node.lines, *(path.read_text() for path in job.folder.glob("*/log/*"))))


@story_with_its_own_etcd
async def test_a_wrong_password_and_none_at_all_are_one_line_each_and_exit_3(job: Job) -> None:
    await add_users(job.etcd.endpoint)
    wrong = await job.node("--np", "1", "--etcd-user", "job", environ={"ELASTIC_ETCD_PASSWORD": "guess"})
    nobody = await job.node("--np", "1")
    for node in (wrong, nobody):
        assert await node.exits() == 3
        assert len(node.lines) == 1
        assert "guess" not in node.lines[0]


@story
async def test_an_etcd_of_our_own_that_is_killed_is_started_again_and_the_job_forms_again(job: Job) -> None:
    node = await job.node(server=False, ttl_s=QUICK_TTL_S)
    (before,) = await job.world(1, 1)
    (etcd,) = [child for child in psutil.Process(node.process.pid).children() if child.name() == "etcd"]
    etcd.kill()
    await node.says(r"etcd of this job exited \(killed by SIGKILL, .*\); starting a new, empty one")
    await before.ends()
    (after,) = await job.world(1, 1)
    assert after.env["ELASTIC_FENCE"] != before.env["ELASTIC_FENCE"]
    await after.exits(0)
    assert await node.exits() == 0
