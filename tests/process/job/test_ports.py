"""The ports of a node: from a range, from Paddle's variable, and the one where workers meet."""

from __future__ import annotations

from tests.support.fake_workers import Worker
from tests.support.job_harness import Job, story
from tests.support.reserved_ports import free_range, listening


def ports_of(worker: Worker) -> set[int]:
    """Every port of the job that a worker is told."""
    endpoints = worker.env["ELASTIC_ENDPOINTS"].split(",")
    return {int(worker.env["MASTER_PORT"]), *(int(endpoint.rpartition(":")[2]) for endpoint in endpoints)}


@story
async def test_every_port_of_a_node_is_from_the_range_and_busy_ones_are_passed_over(job: Job) -> None:
    low, high = free_range(7)
    with listening(low + 1, reuse=False):
        await job.node("--port-range", f"{low}:{high}", "--nproc-per-node", "2")
        first, _ = await job.world(1, 2)
    assert first.env["ELASTIC_ENDPOINTS"] == f"127.0.0.1:{low},127.0.0.1:{low + 2}"
    assert ports_of(first) < {*range(low, high + 1)} - {low + 1}


@story
async def test_nodes_of_one_machine_share_a_range_without_a_clash(job: Job) -> None:
    low, high = free_range(10)
    await job.node("--port-range", f"{low}:{high}", "--local-nodes", "2", server=False)
    first, second = await job.world(1, 2)
    assert ports_of(first) == ports_of(second) < {*range(low, high + 1)}
    assert len(ports_of(first)) == 3


@story
async def test_too_few_free_ports_are_exit_2_before_the_node_has_registered(job: Job) -> None:
    low, high = free_range(5)
    with listening(low, reuse=False), listening(low + 3, reuse=False), listening(high, reuse=False):
        node = await job.node("--port-range", f"{low}:{high}", "--nproc-per-node", "2")
        await node.says(f"^elastic-launch: error: need 6 free ports in {low}:{high}, found 2; widen --port-range")
        assert await node.exits() == 2
    assert not any("joined" in line for line in node.lines)


@story
async def test_flags_start_port_gives_the_workers_the_ports_from_there_on(job: Job) -> None:
    low, _ = free_range(6)
    await job.node("--nproc-per-node", "2", environ={"FLAGS_START_PORT": str(low)})
    first, _ = await job.world(1, 2)
    assert first.env["PADDLE_TRAINER_ENDPOINTS"] == f"127.0.0.1:{low},127.0.0.1:{low + 1}"
    assert first.env["MASTER_PORT"] in {str(low + place) for place in (2, 3, 4)}


@story
async def test_workers_meet_at_the_control_port_in_every_generation(job: Job) -> None:
    (port, _) = free_range(1)
    await job.node("--ctrl-port", str(port))
    (worker,) = await job.world(1, 1)
    assert (worker.env["MASTER_PORT"], worker.env["PADDLE_MASTER"]) == (str(port), f"127.0.0.1:{port}")
    await worker.exits(1)
    (again,) = await job.world(2, 1)
    assert again.env["MASTER_PORT"] == str(port)


@story
async def test_a_busy_control_port_is_named_with_the_mend(job: Job) -> None:
    (port, _) = free_range(1)
    with listening(port, reuse=True):
        node = await job.node("--ctrl-port", str(port))
        await node.says(f"^elastic-launch: error: --ctrl-port {port} cannot be used .*use another --ctrl-port$")
        assert await node.exits() == 2


@story
async def test_nodes_with_loopback_addresses_of_their_own_have_one_control_port(job: Job) -> None:
    (port, _) = free_range(1)
    flags = ("--np", "2", "--ctrl-port", str(port))
    nodes = [await job.node(*flags, "--host", host) for host in ("127.0.0.1", "127.0.0.2")]
    world = await job.world(1, 2)
    assert {worker.env["MASTER_PORT"] for worker in world} == {str(port)}
    assert {worker.env["MASTER_ADDR"] for worker in world} < {"127.0.0.1", "127.0.0.2"}
    assert {worker.node for worker in world} == {node.id for node in nodes}
