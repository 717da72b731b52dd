"""What people see of a job: the console, the logs, and how much the agent says."""

from __future__ import annotations

import re

from tests.support.job_harness import Job, story


@story
async def test_the_console_shows_rank_0_where_it_runs_with_stdout_and_stderr_apart(job: Job) -> None:
    first = await job.node("--np", "2")
    await first.says("joined")
    second = await job.node("--np", "2")
    for worker in await job.world(1, 2):
        await worker.obeys("print", f"out of {worker.rank}")
        await worker.obeys("complain", f"err of {worker.rank}")
        await worker.exits(0)
    assert [await node.exits() for node in (first, second)] == [0, 0]
    assert first.shown == ["out of 0"]
    assert "err of 0" in first.lines
    assert all(line.startswith("[elastic-launch ") for line in first.lines if line != "err of 0")
    assert second.shown == []
    assert all(line.startswith("[elastic-launch ") for line in second.lines)


@story
async def test_a_workers_log_has_a_header_its_output_and_a_closing_line(job: Job) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "2")
    world = await job.world(1, 2)
    for worker in world:
        await worker.obeys("print", f"I am {worker.rank}")
        await worker.obeys("complain", "and I complain")
        await worker.exits(0)
    assert await node.exits() == 0
    for rank in (0, 1):
        header, *said, closing = node.text(f"workerlog.{rank}").splitlines()
        assert re.fullmatch(
            rf"==== elastic-launch job {job.job_id} gen 1 rank {rank} local {rank} host 127\.0\.0\.1 "
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 ====",
            header,
        )
        assert said == [f"I am {rank}", "and I complain"]
        assert closing == f"==== rank {rank} gen 1 ended: exit 0 ===="


@story
async def test_a_log_is_appended_over_the_starts_of_its_rank(job: Job) -> None:
    node = await job.node("--np", "1")
    for generation in (1, 2):
        (worker,) = await job.world(generation, 1)
        await worker.obeys("print", f"start {generation}")
        await worker.exits(2 - generation)
    assert await node.exits() == 0
    lines = node.text("workerlog.0").splitlines()
    for generation, words in ((1, "exit 1"), (2, "exit 0")):
        (begin,) = (place for place, line in enumerate(lines) if f" gen {generation} rank 0 local 0 " in line)
        assert lines[begin + 1] == f"start {generation}"
        assert f"==== rank 0 gen {generation} ended: {words} ====" in lines[begin + 2 :]


@story
async def test_quiet_says_nothing_of_a_job_that_ends_well_and_verbose_says_more(job: Job) -> None:
    quiet = await job.node("--np", "2", "--quiet")
    verbose = await job.node("--np", "2", "--verbose")
    world = await job.world(1, 2)
    for worker in world:
        await worker.exits(0)
    assert [await quiet.exits(), await verbose.exits()] == [0, 0]
    assert quiet.lines == []
    assert "joined the job" in quiet.text("launcher.log")
    (pid,) = (worker.pid for worker in world if worker.node == verbose.id)
    await verbose.says(f"started the workers of generation 1: pids {pid}")
