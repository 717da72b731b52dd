"""Which processes of a node have a raised priority."""

from __future__ import annotations

import os
from signal import SIGKILL

import pytest

from launcher.doctor.machine import may_raise_priority
from launcher.system.priority import RAISED_NICE
from tests.support import stub_torch
from tests.support.agent_process import Node
from tests.support.job_harness import Job, story

WARM = {"ELASTIC_NO_PRELOAD": "0"}


def nice(pid: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, pid)


def raised_processes(node: Node) -> set[int]:
    return {pid for pid in node.processes() if nice(pid) < 0}


@pytest.mark.skipif(
    not may_raise_priority(),
    reason="the tests may not raise a priority here (root or ulimit -e 30), or not from nice 0",
)
@story
async def test_an_agent_and_its_nursery_are_raised_and_no_worker_is_however_it_starts(job: Job) -> None:
    stub_torch.bare(job.folder)
    cold = await job.node("--np", "2", "--nproc-per-node", "2", script=(str(job.script),))
    warm = await job.node("--np", "2", "--nproc-per-node", "2", "--verbose", script=(str(job.script),), environ=WARM)
    workers = await job.world(1, 4)
    await warm.says(r"started the workers of generation 1: pids \d+, \d+ \(preloaded\)")
    for node in (cold, warm):
        assert raised_processes(node) == {node.process.pid, node.nursery()}
        assert {nice(pid) for pid in raised_processes(node)} == {RAISED_NICE}
    assert {nice(worker.pid) for worker in workers} == {0}

    os.kill(warm.nursery(), SIGKILL)
    await warm.says("the fork server died, and its workers with it; starting another")
    workers = await job.newest_world(4)
    assert raised_processes(warm) == {warm.process.pid, warm.nursery()}
    assert {nice(worker.pid) for worker in workers} == {0}
    for worker in workers:
        await worker.exits(0)


@story
async def test_an_agent_that_was_started_under_nice_keeps_that_and_so_do_its_workers(job: Job) -> None:
    node = await job.node("--np", "1", within=("/usr/bin/env", "nice", "-n", "5"))
    (worker,) = await job.world(1, 1)
    ours = {nice(pid) for pid in (node.process.pid, node.nursery(), worker.pid)}
    assert ours == {min(nice(os.getpid()) + 5, 19)}
    await worker.exits(0)
    assert await node.exits() == 0
