"""Parameter servers under the launcher, with real training: a server is lost, a worker is lost, training ends well."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from tests.support.agent_process import Node
from tests.support.job_harness import QUICK_TTL_S, Job, story
from tests.support.recovery_reports import adds_up, recoveries, told

QUICK = ("--lr", "0.005")
"""Five times the example's own, and so a fifth of its epochs: a step costs 6 ms of processor time."""
FINAL_LOSS_MAX = 0.5
"""The linear regression ends at 0.44; without training it is at 1 or more."""

HELD_SCRIPT = """
import fcntl, functools, itertools
import torch
import elastic
from elastic.examples import ps_regression
from elastic.train import ps
from elastic.train.ps.snapshot import Snapshots

def wait(name):
    with open("../" + name) as file:
        fcntl.flock(file, fcntl.LOCK_SH)

if elastic.env().role == "server":
    first = open("../first", "w")
    fcntl.flock(first, fcntl.LOCK_EX)
    write = Snapshots.write

    def write_and_go(*what):
        write(*what)
        first.close()

    Snapshots.write = write_and_go
    ps.Server = functools.partial(ps.Server, snapshot_every_s=0.5)
else:
    step, steps = ps.Worker.step, itertools.count()

    def wait_and_step(worker):
        if name := {170: "first", 300: "second"}.get(next(steps)):
            wait(name)
        step(worker)

    ps.Worker.step = wait_and_step
def samples():
    torch.manual_seed(0)
    x = torch.randn(442, 10)
    y = x @ torch.randn(10, 1) + 3.0 * torch.randn(442, 1)
    return x, (y - y.mean()) / y.std()

ps_regression.samples = samples
ps_regression.main()
"""
"""The example, whose workers wait at two steps, however slow or fast the machine is. Before the fourth epoch they wait
for a snapshot of the server. Two epochs later they wait for the story: what it does until then comes while steps run.
Its samples are as many, and need no scikit-learn.
"""
AFTER_SNAPSHOT = r"^Epoch: 3, Batch: 9,"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Workers stay before their second step until the end of this block."""
    with (folder / "second").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


async def start(job: Job, nodes: int) -> tuple[dict[str, Node], list[Node]]:
    """Nodes by their first seat, and the spares. Each runs one process, which is as soon there without a nursery."""
    script = (str(job.write("held.py", HELD_SCRIPT)), *QUICK, "--epochs", "9")
    flags = ("--np", "2", "--server-num", "1", "--worker-num", "1", "--no-preload")
    started = [await job.node(*flags, ttl_s=QUICK_TTL_S, script=script) for _ in range(nodes)]
    assignments: dict[str, Node] = {}
    spares = []
    for node in started:
        said = await node.says(r"this one has (\w+ \d+)|spare: generation")
        if said[1]:
            assignments[said[1]] = node
        else:
            spares.append(node)
    return assignments, spares


async def final_loss(node: Node) -> float:
    return float((await node.shows(r"^final loss: ([0-9.]+)$"))[1])


@story
async def test_a_lost_server_comes_back_from_its_snapshot_and_the_workers_go_on(job: Job) -> None:
    with held(job.folder):
        assignments, (spare,) = await start(job, 4)
        first = assignments["worker 0"]
        await first.shows(AFTER_SNAPSHOT)
        assert list((job.folder / "checkpoints").glob("ps/server-0/step-*"))
        await assignments["server 0"].killed()
    await first.says(r"reconnected to server 0 at \S+")
    line = await spare.says(r"\(server 0\) was lost.*: back in ([\d.]+) s: ")
    assert {"detect", "assign", "decide", "publish", "spawn", "restore", "serve"} <= set(adds_up(line.string, line[1]))
    (event,) = recoveries(spare)
    assert (event["complete"], list(event["phases"])[-1]) == (True, "serve")
    assert await final_loss(first) < FINAL_LOSS_MAX
    for node in (first, assignments["worker 1"], spare):
        assert await node.exits() == 0
    assert "server 0 restored its snapshot" in spare.text("serverlog.0")
    (kept,) = await told(job)
    assert kept.text in line.string
    (began,) = await told(job, "tasks")
    assert (began.rev, dict(began.phases).items() <= dict(kept.phases).items()) == (kept.rev, True)


@story
async def test_a_lost_worker_stops_neither_the_servers_nor_the_other_worker(job: Job) -> None:
    with held(job.folder):
        assignments, _ = await start(job, 3)
        first = assignments["worker 0"]
        await first.shows(AFTER_SNAPSHOT)
        await assignments["worker 1"].killed()
    assert await final_loss(first) < FINAL_LOSS_MAX
    assert await first.exits() == 0
    assert await assignments["server 0"].exits() == 0
    assert first.text("workerlog.0").count("==== elastic-launch job") == 1
