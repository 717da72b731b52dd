"""Workers that make no steps any more: their stacks are in their logs, and it counts as their failure."""

from __future__ import annotations

import os
from signal import SIGCONT, SIGSTOP

from tests.support.job_harness import Job, story
from tests.support.worker_messages import reports, says


@story
async def test_a_worker_that_hangs_is_named_with_its_stacks_and_charged_and_the_one_behind_comes_first(
    job: Job,
) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "2", "--hang-timeout", "1", "--failure-stop-timeout", "0.4")
    waiting, behind = await job.world(1, 2)
    node.signal(SIGSTOP)  # So that what both say reaches the agent in one moment, as from workers that wait in a step.
    await reports(behind, 4)
    await reports(waiting, 5)
    await behind.obeys("hang", 1000)
    node.signal(SIGCONT)
    words = r"no progress for 1 s \(--hang-timeout\) after step 4; its stack traces are in its log"
    await node.says(rf"rank 1 hangs: {words}; stopping this node's workers")
    await node.says(rf"Root cause: rank 1 on host 127\.0\.0\.1 .*: {words}\.")
    await node.says("The last lines of rank 1's log:")
    await node.says(r'^    +File ".*puppet\.py", line \d+ in hang_here$')
    await node.says("restart 1 of 3")
    world = await job.world(2, 2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in world} == {"1"}
    hung, blamed_too = node.text("workerlog.1"), node.text("workerlog.0")
    assert "Current thread" in hung
    assert "in hang_here" in hung.partition("gen 2")[0]
    assert "Current thread" in blamed_too, "every worker of the node shows its stacks"
    await node.says(r"On the same node: rank 0: no progress for 1 s \(--hang-timeout\) after step 5")


@story
async def test_a_worker_that_was_frozen_is_told_from_those_that_wait_for_it(job: Job) -> None:
    node = await job.node(
        "--np", "1", "--nproc-per-node", "2", "--hang-timeout", "0.5", "--failure-stop-timeout", "0.4"
    )
    waiting, frozen = await job.world(1, 2)
    await reports(frozen, 4)
    await reports(waiting, 5)
    os.kill(frozen.pid, SIGSTOP)
    await node.says(r"Root cause: rank 1 .* after step 4; its process is suspended, by SIGSTOP or a debugger\.")


@story
async def test_a_worker_that_never_reported_is_not_awaited(job: Job) -> None:
    node = await job.node(
        "--np", "1", "--nproc-per-node", "2", "--hang-timeout", "0.5", "--failure-stop-timeout", "0.4"
    )
    silent, reporting = await job.world(1, 2)
    await says(silent, "formed")
    await reports(reporting, 1)
    await node.says(r"rank 1 hangs: no progress for 0\.5 s")
    await node.says("Root cause: rank 1 ")
    assert not any("rank 0: no progress" in line for line in node.lines)


@story
async def test_a_long_preparation_is_no_hang_and_the_clock_goes_on_when_it_is_over(job: Job) -> None:
    node = await job.node(
        "--np", "1", "--nproc-per-node", "2", "--hang-timeout", "0.5", "--failure-stop-timeout", "0.4"
    )
    busy, other = await job.world(1, 2)
    await says(busy, "preparing", what="unpacking the data")
    await reports(other, 3)
    clock = await job.node("--job-id", f"{job.job_id}.clock", "--np", "2", "--join-timeout", "1")
    assert await clock.exits() == 4, "more than the limit has passed"
    assert not any("hangs" in line for line in node.lines)
    await says(busy, "ready")
    await node.says("rank 1 hangs: no progress")


@story
async def test_workers_that_have_all_met_and_get_no_process_group_are_started_again_with_words_that_say_so(
    job: Job,
) -> None:
    flags = ("--np", "2", "--scale-up-interval", "0", "--partition-timeout", "0.2", "--failure-stop-timeout", "0.4")
    for number in (1, 2):
        await job.node("--host", f"127.0.0.{number}", *flags)
    first, second = await job.world(1, 2)
    await second.obeys("say", {"type": "joining", "missing": "the process group", "met": True})
    words = r"process group not ready 2 s after all workers joined \(10 × --partition-timeout\)"
    await job.node_of(second).says(f"rank 1 hangs: {words}")
    again = await job.world(2, 2)
    assert again[0].env["TORCHELASTIC_RESTART_COUNT"] == "1"
    await first.ends()
