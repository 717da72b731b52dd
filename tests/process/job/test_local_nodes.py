"""Several nodes on this machine, with an etcd of their own."""

from __future__ import annotations

import asyncio
import shlex
import sys
from signal import SIGINT, SIGTERM

import psutil

from tests.support.ctl_commands import ran_ctl
from tests.support.job_harness import Job, story


@story
async def test_local_nodes_bring_their_own_etcd_and_end_together(job: Job) -> None:
    parent = await job.node("--local-nodes", "2", server=False)
    for worker in await job.world(1, 2):
        await worker.exits(0)
    assert await parent.exits() == 0
    await parent.leaves_nothing()


@story
async def test_the_printed_lines_start_a_further_node_which_the_job_takes_in_and_show_the_status(job: Job) -> None:
    parent = await job.node("--local-nodes", "2", "--print-secret", server=False)
    line = (await parent.says(r"^elastic-launch --elastic-server .*"))[0]
    asked = (await parent.says(r"^elastic-ctl status .*"))[0]
    await job.world(1, 2)
    words = shlex.split(line)
    flags = ["--elastic-server", "--job-id", "--lease-ttl", "--join-window", "--checkpoint-dir"]
    assert [word.partition("=")[0] for word in words if word.startswith("--")] == flags, "what was typed, and where"
    further = await job.node(*words[1:-1], server=False)
    world = await job.world(2, 3)
    assert not [one for one in (*parent.lines, *further.lines) if "uses the job's settings" in one or "--force" in one]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "launcher.ctl", *shlex.split(asked)[1:]), stdout=asyncio.subprocess.PIPE
    )
    shown, _ = await process.communicate()
    assert process.returncode == 0
    assert b"np 2+, world size 3" in shown
    for worker in world:
        await worker.exits(0)
    assert [await node.exits() for node in (parent, further)] == [0, 0]


@story
async def test_a_further_node_that_is_the_first_to_register_does_not_keep_those_out_that_brought_the_etcd(
    job: Job,
) -> None:
    """The nodes of `elastic-launch` without --np are started with these flags."""
    further = await job.node()
    await job.world(1, 1)
    own = await job.node("--np", "1+", "--force")
    for worker in await job.world(2, 2):
        await worker.exits(0)
    assert [await node.exits() for node in (further, own)] == [0, 0]


@story
async def test_an_etcd_that_is_started_again_empty_has_the_job_with_every_node_of_it(job: Job) -> None:
    parent = await job.node(server=False, join_window_s=3)
    line = (await parent.says(r"^elastic-launch --elastic-server .*"))[0]
    await job.world(1, 1)
    further = await job.node(*shlex.split(line)[1:-1], server=False)
    await job.world(2, 2)
    (etcd,) = [one for one in psutil.Process(parent.process.pid).children() if one.name() == "etcd"]
    etcd.kill()
    for worker in await job.world(1, 2):
        await worker.exits(0)
    assert [await node.exits() for node in (parent, further)] == [0, 0]


@story
async def test_one_ctrl_c_ends_all_local_nodes_in_order(job: Job) -> None:
    parent = await job.node("--local-nodes", "2", server=False)
    world = await job.world(1, 2)
    parent.signal(SIGINT)
    assert await parent.exits() == 130
    assert not any(worker.runs for worker in world)
    assert sum("left; the job stays open" in line for line in parent.lines) == 2
    await parent.leaves_nothing()


@story
async def test_a_drained_node_does_not_say_that_the_job_has_ended(job: Job) -> None:
    parent = await job.node("--local-nodes", "2")
    await job.world(1, 2)
    assert (await ran_ctl(job, "drain", "0")).code == 0
    await job.newest_world(1)
    parent.signal(SIGTERM)
    assert await parent.exits() == 143


@story
async def test_where_all_local_nodes_were_drained_nothing_is_wrong(job: Job) -> None:
    parent = await job.node("--local-nodes", "2")
    await job.world(1, 2)
    assert (await ran_ctl(job, "drain", "0", "1")).code == 0
    assert await parent.exits() == 0


@story
async def test_a_job_that_completes_without_a_local_node_that_was_killed_has_completed(job: Job) -> None:
    parent = await job.node("--local-nodes", "2", server=False)
    old = await job.world(1, 2)
    agents = [child for child in psutil.Process(parent.process.pid).children() if "launcher" in child.cmdline()]
    agents[0].kill()
    (worker,) = await job.newest_world(1)
    assert worker.pid not in [one.pid for one in old]
    await worker.exits(0)
    assert await parent.exits() == 0
