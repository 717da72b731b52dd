"""Parameter servers under the launcher, with real training: a server is lost, a worker is lost, training ends well."""

from __future__ import annotations

from tests.process.jobs import QUICK_TTL_S, Job, story
from tests.process.nodes import Node

REGRESSION = ("-m", "elastic.examples.ps_regression")
FINAL_LOSS_MAX = 0.55
"""The linear regression ends at 0.48; without training it is at 1 or more."""


async def start(job: Job, nodes: int, *more: str) -> tuple[dict[str, Node], list[Node]]:
    """Nodes by their first seat, and the spares."""
    flags = ("--np", "2", "--server_num", "1", "--worker_num", "1")
    started = [await job.node(*flags, ttl_s=QUICK_TTL_S, script=(*REGRESSION, *more)) for _ in range(nodes)]
    seated: dict[str, Node] = {}
    spares = []
    for node in started:
        said = await node.says(r"this one has (\w+ \d+)|spare: generation")
        if said[1]:
            seated[said[1]] = node
        else:
            spares.append(node)
    return seated, spares


async def final_loss(node: Node) -> float:
    return float((await node.shows(r"^final loss: ([0-9.]+)$"))[1])


@story
async def test_the_quick_starts_two_servers_and_two_workers_train_on_one_machine(job: Job) -> None:
    node = await job.node("--server_num", "2", "--worker_num", "2", script=(*REGRESSION, "--epochs", "30"))
    await node.shows(r"^Epoch: 0, Batch: 9, loss: [0-9.]+$")
    assert await final_loss(node) < FINAL_LOSS_MAX
    assert await node.exits() == 0


@story
async def test_a_lost_server_comes_back_from_its_snapshot_and_the_workers_go_on(job: Job) -> None:
    seated, (spare,) = await start(job, 4, "--epochs", "60")
    first = seated["worker 0"]
    await first.shows(r"^Epoch: 3, Batch: 9,")
    await job.told.until(lambda: list((job.folder / "checkpoints").glob("ps/server-0/snapshot-*")), "a first snapshot")
    await seated["server 0"].killed()
    await first.says(r"server 0 at \S+ is back")
    assert await final_loss(first) < FINAL_LOSS_MAX
    for node in (first, seated["worker 1"], spare):
        assert await node.exits() == 0
    assert "server 0 is back from its snapshot" in spare.text("serverlog.0")


@story
async def test_a_lost_worker_stops_neither_the_servers_nor_the_other_worker(job: Job) -> None:
    seated, _ = await start(job, 3, "--epochs", "60")
    first = seated["worker 0"]
    await first.shows(r"^Epoch: 2, Batch: 9,")
    await seated["worker 1"].killed()
    assert await final_loss(first) < FINAL_LOSS_MAX
    assert await first.exits() == 0
    assert await seated["server 0"].exits() == 0
    assert first.text("workerlog.0").count("==== elastic-launch job") == 1
