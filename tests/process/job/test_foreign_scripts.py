"""Scripts that know nothing of us run unchanged: those of torchrun, of Paddle, and shell scripts."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from tests.support.job_harness import Job, story
from tests.support.script_runs import WARM, completed

DDP_SCRIPT = Path(__file__).parents[3] / "tests" / "scripts" / "torchrun_ddp.py"

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
OURS = ("-m", "launcher", "--local-nodes", "2")


@pytest.mark.timeout(240)
def test_a_script_of_torchrun_gives_the_same_result_under_both_launchers_and_after_a_restart(tmp_path: Path) -> None:
    """The same file, with its own checkpoint, @record and a DistributedSampler.

    It fails under ours only: torchrun --standalone does not always find its gloo workers again after a restart.
    """
    said = []
    for launcher in (TORCHRUN, (*OURS, "train.py", "--fail_once")):
        folder = tmp_path / launcher[1]
        folder.mkdir()
        shutil.copy(DDP_SCRIPT, folder / "train.py")
        said.append(completed(launcher, folder, **WARM))
    assert (folder / "failed-once").exists()
    of_torchrun, ours = said
    assert [line.split()[:4] for line in ours] == [["epoch", str(epoch), "world", "2"] for epoch in range(6)]
    assert ours == of_torchrun


@story
async def test_what_a_recorded_script_says_when_it_fails_is_in_the_report(job: Job) -> None:
    script = job.write(
        "train.py",
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main():\n    raise RuntimeError('no more disk')\nmain()\n",
    )
    node = await job.node("--max-restarts", "0", "--no-preload", script=(str(script),))
    assert await node.exits() == 1
    assert any("RuntimeError: no more disk" in line for line in node.lines)


@story
async def test_a_shell_script_is_run_as_it_is_on_two_nodes(job: Job) -> None:
    script = job.write("train.sh", '#!/bin/sh\necho "$0 $* is $RANK of $WORLD_SIZE at $MASTER_ADDR"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    nodes = [await job.node("--np", "2", "--console", "all", script=(str(script), "--lr", "0.1")) for _ in range(2)]
    assert [await node.exits() for node in nodes] == [0, 0]
    said = sorted(line.removeprefix(f"[{node.id}] ") for node in nodes for line in node.shown)
    assert said == [f"rank {rank}: {script} --lr 0.1 is {rank} of 2 at 127.0.0.1" for rank in (0, 1)]
