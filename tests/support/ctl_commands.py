"""elastic-ctl as a process, for a job under test."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import NamedTuple

from tests.support.awaited_events import LIMIT_S
from tests.support.job_harness import Job

CTL = (sys.executable, "-m", "launcher.ctl")


async def ctl(job: Job, command: str, *flags: str) -> tuple[int, str, str]:
    """`elastic-ctl COMMAND` of this job, run to its end: exit code, stdout, stderr."""
    process = await started(job, command, *flags)
    out, err = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def started(job: Job, command: str, *flags: str) -> asyncio.subprocess.Process:
    named = () if command == "list" else ("--job-id", job.job_id)
    return await asyncio.create_subprocess_exec(
        *(*CTL, command, "--elastic-server", job.etcd.endpoint, *named, *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


async def ran_ctl(job: Job, *words: str, name: str = "me") -> Ran:
    """Run `elastic-ctl` on this job, to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "launcher.ctl", words[0], *words[1:]),
        *("--elastic-server", job.etcd.endpoint, "--job-id", job.job_id),
        env={**os.environ, "LOGNAME": name},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return Ran(process.returncode or 0, out.decode(), err.decode())
