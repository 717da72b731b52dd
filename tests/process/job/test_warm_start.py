"""Nodes whose workers start warm: when they register, and what people are told."""

from __future__ import annotations

import os
from signal import SIGKILL, SIGTERM

import pytest

from tests.support import stub_torch
from tests.support.job_harness import Job, story

pytestmark = pytest.mark.timeout(300)


LOADS = {"ELASTIC_NO_PRELOAD": "0"}
"""Nodes of stories start cold where their scripts do not use torch."""


@story
async def test_a_node_registers_when_its_nursery_is_prepared_and_its_workers_are_warm(job: Job) -> None:
    gate = job.folder / "gate"
    os.mkfifo(gate)
    job.write("slow.py", f"open({str(gate)!r}).read()")
    node = await job.node("--np", "1", "--verbose", "--preload", "slow", script=(str(job.script),), environ=LOADS)
    await node.says("lease .* of")
    await node.says("importing torch for workers")
    assert not any("register" in line for line in node.lines)
    gate.write_text("go")
    await node.says("the fork server is ready")
    await node.says("register: done")
    (worker,) = await job.world(1, 1)
    await node.says(r"started the workers of generation 1: pids \d+ \(preloaded\)")
    await worker.exits(0)
    assert await node.exits() == 0


@story
async def test_a_node_that_still_imports_leaves_at_once(job: Job) -> None:
    stub_torch.bare(job.folder)
    os.mkfifo(job.folder / "gate")
    job.write("slow.py", f"open({str(job.folder / 'gate')!r}).read()")
    node = await job.node("--np", "1", "--verbose", "--preload", "slow", script=(str(job.script),), environ=LOADS)
    await node.says("lease .* of")
    node.signal(SIGTERM)
    assert await node.exits() == 143
    assert not any("register" in line for line in node.lines)


@story
async def test_a_nursery_that_is_killed_is_followed_by_a_warm_one(job: Job) -> None:
    stub_torch.bare(job.folder)
    node = await job.node("--np", "1", "--verbose", script=(str(job.script),), environ=LOADS)
    await job.world(1, 1)
    os.kill(node.nursery(), SIGKILL)
    await node.says("the fork server died, and its workers with it; starting another")
    (worker,) = await job.world(2, 1)
    await node.says(r"started the workers of generation 2: pids \d+ \(preloaded\)")
    await worker.exits(0)
    assert await node.exits() == 0


@story
async def test_a_nursery_that_dies_during_its_imports_is_said_to_and_has_no_workers_to_take_with_it(job: Job) -> None:
    stub_torch.bare(job.folder)
    job.write("deadly.py", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    node = await job.node("--np", "1", "--preload", "deadly", script=(str(job.script),), environ=LOADS)
    await node.says("the fork server died during its imports; starting another")
    await node.says("workers start without preloading: the fork server died during its imports")
    (worker,) = await job.world(1, 1)
    os.kill(node.nursery(), SIGKILL)
    await node.says("the fork server died, and its workers with it; starting another")
    (worker,) = await job.world(2, 1)
    await worker.exits(0)
    assert await node.exits() == 0


@story
async def test_why_workers_start_cold_is_one_line(job: Job) -> None:
    job.write("other.sh", "#!/bin/sh\nexit 0\n").chmod(0o755)
    node = await job.node("--np", "1", script=(str(job.folder / "other.sh"),), environ=LOADS)
    assert await node.exits() == 0
    assert [line.partition("] ")[2] for line in node.lines if "preloading" in line] == [
        "workers start without preloading: other.sh is not a Python script"
    ]


MEETS = """
import os
import torch, torch.distributed as dist

function = dist.init_process_group
patched = function.__code__.co_filename.endswith("torch_patch.py")
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
said = os.environ.get("ELASTIC_NO_TORCH_PATCH")
print(f"{function.__module__}.{function.__name__}", patched, said, int(total.item()), flush=True)
dist.destroy_process_group()
"""


@story
async def test_torch_is_left_as_it_is_in_the_workers_of_a_node_that_is_asked_to(job: Job) -> None:
    """A node with the flag and one without train together."""
    script = job.write("meets.py", MEETS)
    flags = ("--np", "2", "--console", "all", "--verbose")
    nodes = [
        await job.node(*flags, *more, script=(str(script),), environ={"ELASTIC_NO_TORCH_PATCH": "0"})
        for more in ((), ("--no-torch-patch",))
    ]
    for node, said in zip(nodes, ("True None 2", "False 1 2"), strict=True):
        await node.says(r"started the workers of generation 1: pids \d+ \(preloaded\)")
        await node.shows(f"torch.distributed.distributed_c10d.init_process_group {said}$")
        assert await node.exits() == 0
