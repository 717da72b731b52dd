"""Workers that fail: everybody restarts within the job's budget, and what was wrong is told on every node."""

from __future__ import annotations

import os
import re
from signal import SIGKILL, SIGSEGV, SIGTERM

import pytest

from tests.support.job_harness import Job, Stage, story


@story
async def test_a_worker_that_fails_costs_one_restart_of_everybody(job: Job) -> None:
    nodes = [await job.node("--np", "2") for _ in range(2)]
    world = await job.world(1, 2)
    await world[1].exits(7)
    await world[0].ends()
    again = await job.world(2, 2)
    assert [worker.node for worker in again] == [worker.node for worker in world]
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in again} == {"1"}
    for node in nodes:
        await node.says(rf"Root cause: rank 1 on host 127\.0\.0\.1 \(node {world[1].node}\): exit 7\.")
        await node.says(r"restart 1 of 3; the job continues")
    for worker in again:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0]


@story
async def test_an_exhausted_budget_fails_the_job_with_the_cause_on_every_node(job: Job) -> None:
    nodes = [await job.node("--np", "2", "--nproc-per-node", "2", "--max-restarts", "1") for _ in range(2)]
    for worker in (await job.world(1, 4))[2:3]:
        await worker.exits(3)
    world = await job.world(2, 4)
    failing = world[2]
    await failing.obeys("print", "step 17")
    await failing.obeys("complain", "ValueError: the data is not there")
    await failing.exits(3)
    assert [await node.exits() for node in nodes] == [1, 1]
    for node in nodes:
        assert (
            "ABORT!!! Out of all 4 trainers, the trainer process with rank=[2] was aborted. Please check its log."
            in node.lines
        )
        place = node.lines.index("The last lines of rank 2's log:")
        assert node.lines[place + 1 : place + 3] == ["    step 17", "    ValueError: the data is not there"]
        await node.says(rf"Root cause: rank 2 on host 127\.0\.0\.1 \(node {failing.node}\): exit 3\.")
        await node.says(r"Its log is .*/log/workerlog\.2 on host 127\.0\.0\.1\.")
        await node.says(r"the job has failed: no restart is left \(--max-restarts 1\)")
    assert len(job.workers) == 8


@story
async def test_a_worker_that_dies_of_a_signal_is_told_of_in_words(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "1")
    (worker,) = await job.world(1, 1)
    await worker.dies(SIGKILL)
    (worker,) = await job.world(2, 1)
    await node.says(r"rank 0 ended: killed by SIGKILL, perhaps out of memory")
    await worker.dies(SIGSEGV)
    assert await node.exits() == 1
    await node.says(r"Root cause: rank 0 .*: segmentation fault \(SIGSEGV\)\.")


@story
async def test_a_worker_that_dies_at_once_is_started_again_after_pauses_that_double(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "100", script=(str(job.write("dies.py", "exit(1)\n")),))
    await node.says("backing off 1 s after 2 consecutive failures without progress")
    await node.says("backing off 2 s after 3 consecutive failures without progress")
    assert node.text("launcher.log").count("workers of generation") == 3


@story
async def test_a_program_that_cannot_be_started_fails_the_job_at_once(job: Job) -> None:
    program = job.write("program", "#!/not/there\n")
    program.chmod(0o755)
    node = await job.node("--np", "1", script=(str(program),))
    assert await node.exits() == 1
    why = rf"cannot start {program}: the interpreter in its first line does not exist"
    await node.says(rf"the job has failed: permanent error: {why}")
    assert node.text("launcher.log").count("workers of generation") == 1


@story
async def test_a_folder_that_is_gone_since_the_start_fails_the_job_unless_it_is_there_again(job: Job) -> None:
    for again in (True, False):
        node = await job.node("--np", "1", "--rerun", "--log-dir", str(job.folder / "logs"))
        (worker,) = await job.newest_world(1)
        node.folder.rmdir()
        if again:
            node.folder.mkdir()
        await worker.exits(7)
        if again:
            (worker,) = await job.newest_world(1)
            await worker.exits(0)
            assert await node.exits() == 0
    assert await node.exits() == 1
    await node.says(rf"permanent error: cannot start .*: No such file or directory: {node.folder}$")


@story
async def test_a_worker_that_had_to_be_stopped_is_not_blamed(job: Job) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "2", "--max-restarts", "0", "--failure-stop-timeout", "0.2")
    (stubborn, failing) = await job.world(1, 2)
    await stubborn.obeys("ignore", SIGTERM)
    await failing.exits(5)
    assert await node.exits() == 1
    await node.says(r"Out of all 2 trainers, the trainer process with rank=\[1\] was aborted\.")
    log = node.text("workerlog.0")
    assert "[SignalInfo: *** SIGTERM" in log
    assert "==== rank 0 gen 1 ended: stopped by the launcher (SIGKILL) ====" in log


@story
async def test_exit_101_asks_for_a_restart_that_is_not_charged_after_progress(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "1")
    for generation, step in ((1, 10), (2, 20), (3, 30)):
        (worker,) = await job.world(generation, 1)
        assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0"
        await worker.obeys("progress", step)
        await worker.exits(101)
        await node.says(
            "does not count against --max-restarts: the script asked for it after progress; the job continues"
        )
    (worker,) = await job.world(4, 1)
    await worker.exits(101)
    (worker,) = await job.world(5, 1)
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "1", "without progress it is charged"
    await worker.exits(101)
    assert await node.exits() == 1


@story
async def test_an_exit_code_that_is_named_fatal_fails_the_job_at_once(job: Job) -> None:
    nodes = [await job.node("--np", "2", "--fatal-exit-codes", "42,43") for _ in range(2)]
    world = await job.world(1, 2)
    await world[0].exits(43)
    assert [await node.exits() for node in nodes] == [1, 1]
    for node in nodes:
        await node.says(r"the job has failed: exit 43 of rank 0 is one of --fatal-exit-codes")
        await node.says(r"ABORT!!! Out of all 2 trainers, the trainer process with rank=\[0\] was aborted\.")
    assert len(job.workers) == 2


@story
async def test_a_wrong_setting_found_by_the_library_fails_the_job_at_once_with_its_line(job: Job) -> None:
    """Except where the script catches it and fails of something else later."""
    wrong = "import os, elastic\nos.environ['ELASTIC_ROLE'] = 'guest'\n"
    script = job.write("wrong.py", wrong + "elastic.env()\n")
    node = await job.node("--max-restarts", "3", script=(str(script),))
    assert await node.exits() == 1
    await node.says(r"the job has failed: permanent error: ELASTIC_ROLE is 'guest'; write one of ")
    assert not any("restart 1 of 3" in line for line in node.lines)

    caught = wrong + "try:\n    elastic.env()\nexcept elastic.errors.ConfigError:\n    raise SystemExit(7)\n"
    script = job.write("caught.py", caught)
    node = await job.node("--max-restarts", "0", "--rerun", script=(str(script),))
    assert await node.exits() == 1
    await node.says(r"the job has failed: no restart is left \(--max-restarts 0\)")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax"),
        ("import nosuchmodule\n", "ModuleNotFoundError: No module named 'nosuchmodule'"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args()\n",
            "wrong.py: error: unrecognized arguments: --lr 1",
        ),
    ],
)
def test_a_script_that_cannot_start_fails_the_job_at_once_with_one_report_that_names_the_flag(
    stage: Stage, script: str, error: str
) -> None:
    async def told(job: Job) -> None:
        wrong = job.write("wrong.py", script)
        nodes = [await job.node("--np", "2", script=(str(wrong), "--lr", "1")) for _ in range(2)]
        assert [await node.exits() for node in nodes] == [1, 1]
        for node in nodes:
            await node.says(
                rf"the job has failed: the script cannot start: {re.escape(error)} \(not restarted; "
                r"--retry-startup-errors restarts it anyway\)"
            )
            assert sum("Root cause:" in line for line in node.lines) == 1
            assert not any("the job continues" in line for line in node.lines)

    stage.play(told)


@story
async def test_a_script_that_cannot_start_is_restarted_where_that_is_wanted_and_one_that_had_started_always_is(
    job: Job,
) -> None:
    wrong = job.write("wrong.py", "import nosuchmodule\n")
    node = await job.node("--max-restarts", "1", "--retry-startup-errors", script=(str(wrong),))
    assert await node.exits() == 1
    await node.says(r"the job has failed: no restart is left \(--max-restarts 1\)")

    late = job.write(
        "late.py", "import torch.distributed as dist\ndist.init_process_group('gloo')\nimport nosuchmodule\n"
    )
    node = await job.node("--max-restarts", "0", "--rerun", script=(str(late),))
    assert await node.exits() == 1
    await node.says(r"the job has failed: no restart is left \(--max-restarts 0\)")


@story
async def test_the_budget_is_the_jobs_and_outlives_the_node_that_kept_it(job: Job) -> None:
    """The first node leaves after a restart was charged; the one that goes on knows of it."""
    nodes = [await job.node("--np", "2", "--max-restarts", "1") for _ in range(2)]
    (first, _) = await job.world(1, 2)
    await first.exits(1)
    (first, _) = await job.world(2, 2)
    leaving = job.node_of(first)
    leaving.signal(SIGTERM)
    assert await leaving.exits() == 143
    (worker,) = await job.world(3, 1)
    assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "1"
    await worker.exits(1)
    (stayed,) = (node for node in nodes if node is not leaving)
    assert await stayed.exits() == 1


@story
async def test_a_worker_that_does_not_end_at_sigterm_is_killed_with_its_children(job: Job) -> None:
    await job.node("--np", "1", "--nproc-per-node", "2", "--failure-stop-timeout", "0.2")
    (stubborn, failing) = await job.world(1, 2)
    await stubborn.obeys("ignore", SIGTERM)
    await stubborn.obeys("child", False)
    await failing.exits(1)
    await stubborn.ends()
    await job.world(2, 2)
    (node,) = job.nodes
    await node.says("restart 1 of 3")
    assert "gen 1 ended: stopped by the launcher (SIGKILL)" in node.text("workerlog.0")


@story
async def test_a_script_that_writes_nonsense_as_its_step_fails_as_any_other(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "1")
    for generation in (1, 2):
        (worker,) = await job.world(generation, 1)
        await worker.obeys("progress", 10**40)  # No document of the store holds such a number.
        await worker.exits(3)
    assert await node.exits() == 1


@story
async def test_a_failure_is_told_from_a_log_folder_whose_name_is_no_text(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "0", "--log-dir", os.fsdecode(b"l\xffog"))
    (worker,) = await job.world(1, 1)
    await worker.exits(3)
    assert await node.exits() == 1
    assert [line for line in node.lines if line.startswith("Root cause: rank 0")]
    assert not [line for line in node.lines if "Traceback" in line]
