"""How many descriptors an agent and its workers may have."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGKILL

from launcher import openfiles
from tests.process.jobs import Job, story

GIVEN = 300


def files_of(pid: int) -> tuple[int, int]:
    """The soft and the hard limit of a process."""
    line = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open"))
    soft, hard = line.split()[3:5]
    return int(soft), int(hard)


@story
async def test_an_agent_may_have_all_descriptors_and_its_workers_what_the_user_gave(job: Job) -> None:
    """Also those of a nursery that was started again."""
    limited = ("/bin/sh", "-c", f'ulimit -Sn {GIVEN}; exec "$@"', "sh")
    node = await job.node("--np", "1", within=limited)
    (worker,) = await job.world(1, 1)
    soft, hard = files_of(node.process.pid)
    assert soft == min(hard, openfiles.OPEN_MAX) > GIVEN
    assert files_of(node.nursery()) == files_of(worker.pid) == (GIVEN, hard)
    os.kill(node.nursery(), SIGKILL)
    (again,) = await job.world(2, 1)
    assert files_of(node.nursery()) == files_of(again.pid) == (GIVEN, hard)


@story
async def test_a_warm_worker_has_the_descriptors_that_the_user_gave_too(job: Job) -> None:
    limited = ("/bin/sh", "-c", f'ulimit -Sn {GIVEN}; exec "$@"', "sh")
    await job.node("--np", "1", within=limited, environ={"ELASTIC_NO_WARM": "0"})
    (worker,) = await job.world(1, 1)
    assert files_of(worker.pid)[0] == GIVEN
