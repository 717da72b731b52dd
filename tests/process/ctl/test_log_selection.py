"""`elastic-ctl logs` with `--all`, `--since` and `--previous` on real jobs."""

from __future__ import annotations

import asyncio

from tests.support.awaited_events import LIMIT_S
from tests.support.ctl_commands import ctl, started
from tests.support.job_harness import Job, story


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """The next line that has a text in it."""
    assert stream is not None
    while True:
        line = (await asyncio.wait_for(stream.readline(), LIMIT_S)).decode()
        assert line, f"it ended without {text!r}"
        if text in line:
            return line.rstrip("\n")


@story
async def test_the_logs_of_all_ranks_name_the_rank_in_each_line(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2", "--stop-timeout", "0.1")
    for rank, worker in enumerate(await job.world(1, 2)):
        await worker.obeys("print", f"I am {rank}")
    code, out, err = await ctl(job, "logs", "--all", "-n", "1")
    assert (code, out.splitlines(), err) == (0, ["[rank 0] I am 0", "[rank 1] I am 1"], "")


@story
async def test_all_logs_are_followed_over_a_restart_until_the_job_ends(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "1:2", "--stop-timeout", "0.1")
    first = await job.world(1, 2)
    follows = await started(job, "logs", "--all", "--follow")
    for rank, worker in enumerate(first):
        await worker.obeys("print", f"first {rank}")
    assert {await line_with(follows.stdout, "first"), await line_with(follows.stdout, "first")} == {
        "[rank 0] first 0",
        "[rank 1] first 1",
    }
    await job.node_of(first[1]).killed()
    (last,) = await job.world(2, 1)
    await last.obeys("print", "second")
    assert await line_with(follows.stdout, "second") == "[rank 0] second"
    await last.exits(0)
    out, err = await asyncio.wait_for(follows.communicate(), LIMIT_S)
    assert follows.returncode == 0
    assert b"[rank 0] ==== rank 0 gen 2 ended: exit 0 ====" in out
    assert err.count(b"the job has completed") == 1


@story
async def test_only_what_was_written_within_a_time_is_shown(job: Job) -> None:
    await job.node("--np", "1", "--stop-timeout", "0.1")
    (worker,) = await job.world(1, 1)
    await worker.obeys("print", "old")
    assert "old" in (await ctl(job, "logs", "0", "--since", "10m"))[1]
    await asyncio.sleep(2.5)  # The age of a line is known to the second.
    await worker.obeys("print", "new")
    code, out, err = await ctl(job, "logs", "0", "--since", "2s")
    assert (code, err) == (0, "")
    assert "old" not in out
    code, out, err = await ctl(job, "logs", "0", "--since", "2100-01-01T00:00:00Z")
    assert (code, out) == (2, "")
    assert "in the future" in err


@story
async def test_the_log_of_the_generation_before_is_read_from_the_node_that_had_the_rank(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "1:2", "--stop-timeout", "0.1")
    first = await job.world(1, 2)
    assert "generation 1 is the first" in (await ctl(job, "logs", "0", "--previous"))[2]
    for rank, worker in enumerate(first):
        await worker.obeys("print", f"words of {rank}")
    await job.node_of(first[1]).killed()
    await job.world(2, 1)
    code, out, err = await ctl(job, "logs", "0", "--previous")
    assert (code, err) == (0, "")
    assert "words of 0" in out
    assert "gen 1" in out
    assert "gen 2" not in out
    code, out, err = await ctl(job, "logs", "0", "--previous", "-n", "1")
    assert out.count("\n") == 1
    code, out, err = await ctl(job, "logs", "1", "--previous")
    assert (code, out) == (1, "")
    assert "there is no rank 1" in err
