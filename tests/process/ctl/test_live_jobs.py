"""`elastic-ctl status`, `logs` and `stacks` on real jobs: what an operator sees while nodes come and go."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from signal import SIGINT, SIGSTOP

from tests.support import stub_torch
from tests.support.awaited_events import LIMIT_S
from tests.support.job_harness import QUICK_TTL_S, Job, story
from tests.support.worker_messages import reports, says

PLAIN = """
import time

def waits_here():
    print("up")
    time.sleep(1000)

waits_here()
"""
"""A script that does not use our library."""


class Ctl:
    """One run of `elastic-ctl`, and what it has written so far."""

    def __init__(self, job: Job, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self._job = job
        self._tasks = [
            asyncio.create_task(self._read(process.stdout, self.out)),
            asyncio.create_task(self._read(process.stderr, self.err)),
        ]

    async def _read(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        async for line in stream:
            lines.append(line.decode().rstrip("\n"))
            self._job.told.changed()

    async def shows(self, text: str) -> None:
        await self._job.told.until(lambda: any(text in line for line in self.out), f"elastic-ctl shows {text!r}")

    async def says(self, text: str) -> None:
        await self._job.told.until(lambda: any(text in line for line in self.err), f"elastic-ctl says {text!r}")

    async def ends(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*self._tasks)
            return await self.process.wait()


@asynccontextmanager
async def ctl(job: Job, *words: str) -> AsyncIterator[Ctl]:
    """Start it; it has ended afterwards."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "launcher.ctl",
            *words,
            "--elastic-server",
            job.etcd.endpoint,
            "--job-id",
            job.job_id,
        ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    made = Ctl(job, process)
    try:
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await made.ends()


async def asked(job: Job, *words: str) -> tuple[int, list[str], list[str]]:
    """Run it to its end: the exit code, its lines, and what it said beside."""
    async with ctl(job, *words) as ran:
        code = await ran.ends()
    return code, ran.out, ran.err


@story
async def test_a_node_tells_how_its_workers_stand_what_they_wrote_and_where_they_are(job: Job) -> None:
    node = await job.node("--np", "1", "--nproc-per-node", "2", "--stop-timeout", "0.1")
    first, second = await job.world(1, 2)
    await first.obeys("print", "one\ntwo\nthree")
    await reports(first, 4)
    await says(second, "preparing", what="downloading the data")

    as_json, as_table, last_lines, unknown = await asyncio.gather(
        asked(job, "status", "--json"),
        asked(job, "status"),
        asked(job, "logs", "0", "--lines", "2"),
        asked(job, "logs", "7"),
    )
    assert (as_json[0], as_json[2]) == (0, [])
    told = json.loads(as_json[1][0])
    window = told["snapshots"][node.id]
    assert (window["state"], window["g"], window["m_id"], window["waits"]) == ("running", 1, 0, "")
    assert 0 < window["lease_remaining_s"] <= 10
    workers = {one["index"]: one for one in window["workers"]}
    assert (workers[0]["state"], workers[0]["step"], workers[0]["metrics"]) == ("stepping", 4, {"loss": 0.5})
    assert workers[0]["pid"] == first.pid
    assert (workers[1]["state"], workers[1]["detail"]) == ("preparing", "downloading the data")
    assert workers[1]["log"] == str(node.folder / "log" / "workerlog.1")
    assert as_table[1][2].split() == ["M_id", "node", "host", "ranks", "state", "since", "step", "rate", "note"]
    assert "rank 1 preparing: downloading the data" in as_table[1][3]
    assert last_lines == (0, ["two", "three"], [])
    assert unknown == (1, [], ["elastic-ctl: error: there is no rank 7: generation 1 has the ranks 0 to 1"])

    first.order("hang", 1000)
    os.kill(second.pid, SIGSTOP)
    (code, out, err), frozen = await asyncio.gather(asked(job, "stacks", "0"), asked(job, "stacks", "worker.1"))
    assert code == 0, err
    assert out[0].startswith("Current thread 0x")
    assert any(line.endswith("in hang_here") for line in out)
    assert all(line.startswith(("Current thread", "Thread", "  File")) or not line for line in out)
    assert frozen[:2] == (1, [])
    assert f"rank 1 (pid {second.pid}) is suspended, by SIGSTOP" in frozen[2][0]


@story
async def test_who_looks_for_long_ends_with_ctrl_c_and_says_nothing(job: Job) -> None:
    await job.node("--np", "1", "--stop-timeout", "0.1")
    (worker,) = await job.world(1, 1)
    await worker.obeys("print", "hello")
    async with ctl(job, "logs", "0", "--follow") as follows, ctl(job, "status", "--watch", "0.2") as watches:
        await follows.shows("hello")
        await watches.shows("running")
        for one in (follows, watches):
            one.process.send_signal(SIGINT)
            assert await one.ends() == 130
            assert one.err == []


@story
async def test_a_log_is_followed_to_the_node_that_has_the_rank_next_and_to_the_end_of_the_job(job: Job) -> None:
    one = await job.node("--np", "2", "--lease-ttl", str(QUICK_TTL_S))
    other = await job.node("--np", "2", "--lease-ttl", str(QUICK_TTL_S))
    first, second = await job.world(1, 2)
    nodes = {node.id: node for node in (one, other)}
    await first.obeys("print", "from generation 1")
    async with ctl(job, "logs", "0", "--follow") as follows, ctl(job, "status", "--watch") as watches:
        await follows.shows("from generation 1")
        await watches.shows("training with 2 nodes")
        await nodes[first.node].killed()
        (left,) = await job.world(2, 1)
        await left.obeys("print", "from generation 2")
        await follows.says(f"rank 0 moved from {first.node} to {second.node} (generation 2)")
        await follows.shows("from generation 2")
        await watches.shows("Missing: 1 node")
        await left.exits(0)
        assert await nodes[second.node].exits() == 0
        assert await follows.ends() == 0
        assert await watches.ends() == 0
    assert follows.out[-1] == "==== rank 0 gen 2 ended: exit 0 ===="
    assert [line for line in follows.out if line.startswith("==== elastic-launch")][-1].split()[4:6] == ["gen", "2"]
    assert follows.err[-1] == "elastic-ctl: the job has completed: every worker of generation 2 ended with exit code 0"
    assert any(line.startswith(f"Job {job.job_id} completed") for line in watches.out)

    logs, stacks = await asyncio.gather(asked(job, "logs", "0"), asked(job, "stacks", "0"))
    where = "the log of rank 0 is workerlog.0 in the log directory of host 127.0.0.1"
    assert logs == (1, [f"the job has completed, and its agents have ended; {where}"], [])
    assert stacks == (1, [], ["elastic-ctl: error: the job has completed: no worker runs, and none has stack traces"])


@story
async def test_after_a_failure_the_end_of_the_log_that_the_verdict_keeps_is_shown(job: Job) -> None:
    node = await job.node("--np", "1", "--max-restarts", "0")
    (worker,) = await job.world(1, 1)
    await worker.obeys("complain", "no such file: data.bin")
    await worker.exits(3)
    await node.exits()
    code, out, err = await asked(job, "logs", "0", "--follow")
    assert (code, err) == (1, [])
    assert f"Its log is {node.folder}/log/workerlog.0 on host 127.0.0.1." in out
    assert out[-1].strip() == "no such file: data.bin"


@story
async def test_a_worker_without_our_library_shows_its_stacks_when_it_was_started_warm(job: Job) -> None:
    stub_torch.bare(job.folder)
    script = job.write(
        "plain.py", "import time\ndef waits_here():\n    print('up')\n    time.sleep(1000)\nwaits_here()\n"
    )
    node = await job.node(
        *("--np", "1", "--stop-timeout", "0.1", "--console", "all"),
        script=(str(script),),
        environ={"ELASTIC_NO_PRELOAD": "0", "PYTHONPATH": f"{job.folder}{os.pathsep}{stub_torch.ROOT}"},
    )
    await node.shows("up")
    code, out, err = await asked(job, "stacks", "0")
    assert code == 0, err
    assert any(line.endswith("in waits_here") for line in out)
    assert "written by rank 0 itself" in err[0]


@story
async def test_one_that_was_started_cold_is_looked_at_from_outside_or_it_is_said_what_is_missing(job: Job) -> None:
    script = job.write(
        "plain.py", "import time\ndef waits_here():\n    print('up')\n    time.sleep(1000)\nwaits_here()\n"
    )
    node = await job.node("--np", "1", "--stop-timeout", "0.1", "--console", "all", script=(str(script),))
    await node.shows("up")
    code, out, err = await asked(job, "stacks", "0")
    there = shutil.which("py-spy", path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if code == 0:
        assert any("waits_here" in line for line in out)
        assert "py-spy" in err[0]
    else:
        assert ("py-spy says" if there else "pip install py-spy") in err[0]
