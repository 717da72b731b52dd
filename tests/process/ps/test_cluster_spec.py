"""Parameter-server jobs of real agents: a roster that changes while its processes go on, and how such a job ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

from tests.support.etcd_servers import free_ports
from tests.support.fake_workers import Worker
from tests.support.job_harness import Job, story, workers_by_role

FLAGS = ("--np", "2", "--server-num", "1", "--worker-num", "1", "--lease-ttl", "2")


def roster(worker: Worker) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(worker.env["ELASTIC_ROSTER_FILE"]).read_text())
    return found


@story
async def test_the_job_is_completed_when_the_workers_are_done_and_the_launcher_ends_the_servers(job: Job) -> None:
    first = await job.node(*FLAGS)
    await first.says("waiting for 2 more")
    second = await job.node(*FLAGS)
    third = await job.node(*FLAGS)
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    assert world["server 0"].node == first.id
    for name in ("worker 0", "worker 1"):
        assert world[name].env["PADDLE_PSERVERS_IP_PORT_LIST"] == world["server 0"].env["PADDLE_CURRENT_ENDPOINT"]
        await world[name].exits(0)
    await world["server 0"].ends()
    assert [await node.exits() for node in (first, second, third)] == [0, 0, 0]
    assert "[SignalInfo: *** SIGTERM" in first.text("serverlog.0")


@story
async def test_a_lost_worker_stops_nobody_and_a_new_node_joins_without_a_restart(job: Job) -> None:
    for _ in range(3):
        await job.node(*FLAGS)
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    lost = job.node_of(world["worker 1"])
    await lost.killed()
    kept = job.node_of(world["worker 0"])
    await kept.says(r"revision 1 of the cluster spec: .* \(worker 1\) was lost")
    fresh = await job.node(*FLAGS)
    await fresh.says("this one has worker 1")
    after = await workers_by_role(job, "server 0", "worker 0")
    assert (after["server 0"].pid, after["worker 0"].pid) == (world["server 0"].pid, world["worker 0"].pid)
    newest = await job.told.until(
        lambda: next((worker for worker in job.workers if worker.node == fresh.id), None), "the new node's worker runs"
    )
    assert newest.env["PADDLE_TRAINER_ID"] == "1"
    assert newest.env["PADDLE_TRAINERS_NUM"] == "2"
    assert newest.generation == 1
    await world["worker 0"].exits(0)
    await newest.exits(0)
    assert await kept.exits() == 0
    assert await fresh.exits() == 0


@story
async def test_a_lost_server_comes_back_on_a_spare_and_the_workers_learn_where(job: Job) -> None:
    for _ in range(4):
        await job.node(*FLAGS)
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    serving = job.node_of(world["server 0"])
    running = [job.node_of(worker) for worker in world.values()]
    spare = next(node for node in job.nodes if node not in running)
    await spare.says("spare: generation 1 runs without this node")
    await serving.killed()
    again = (await workers_by_role(job, "server 0"))["server 0"]
    assert again.node == spare.id
    worker = world["worker 0"]
    node = job.node_of(worker)
    proven = f"{serving.id} ran on this host, and all its processes have exited"
    await job.told.until(
        lambda: any(proven in line for one in job.nodes for line in one.lines), "a node proposes and has the proof"
    )
    await node.says(rf"revision \d+ of the cluster spec: .* {again.node} \(server 0\) joins")
    assert roster(worker)["servers"] == [again.env["PADDLE_CURRENT_ENDPOINT"]]
    assert not worker.ended
    for name in ("worker 0", "worker 1"):
        await world[name].exits(0)
    assert await node.exits() == 0


@story
async def test_a_failed_worker_starts_again_alone_and_the_budget_pays(job: Job) -> None:
    nodes = [await job.node(*FLAGS) for _ in range(3)]
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    failing = world["worker 1"]
    await failing.exits(3)
    again = await job.told.until(
        lambda: next((w for w in job.workers if w.node == failing.node and w is not failing), None),
        "worker 1 starts again",
    )
    assert again.env["PADDLE_TRAINER_ID"] == "1"
    assert again.env["TORCHELASTIC_RESTART_COUNT"] == "1"
    assert not world["worker 0"].ended
    assert not world["server 0"].ended
    for node in nodes:
        await node.says("restart 1 of 3")
        await node.says(r"Root cause: rank 1 on host 127\.0\.0\.1")
    await world["worker 0"].exits(0)
    await again.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0, 0]


@story
async def test_without_a_restart_left_a_failed_server_ends_the_job_and_is_named(job: Job) -> None:
    nodes = [await job.node(*FLAGS, "--max-restarts", "0") for _ in range(3)]
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    await world["server 0"].dies(SIGKILL)
    for node in nodes:
        await node.says(r"the job has failed: no restart is left")
        assert await node.exits() == 1


@story
async def test_a_worker_node_that_drains_leaves_and_the_others_go_on(job: Job) -> None:
    for _ in range(3):
        await job.node(*FLAGS)
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    leaving = job.node_of(world["worker 0"])
    leaving.signal(SIGTERM)
    assert await leaving.exits() == 128 + SIGTERM
    await leaving.leaves_nothing()
    assert not world["worker 1"].ended
    assert not world["server 0"].ended
    await world["worker 1"].exits(0)
    assert await job.node_of(world["server 0"]).exits() == 0


@story
async def test_on_one_machine_all_runs_in_one_node_and_a_failure_starts_it_again(job: Job) -> None:
    node = await job.node("--server-num", "2", "--worker-num", "2")
    world = await workers_by_role(job, "server 0", "server 1", "worker 0", "worker 1")
    await world["worker 0"].exits(7)
    again = await job.told.until(
        lambda: next((w for w in job.workers if w.env["ELASTIC_INDEX"] == "0" and not w.ended), None), "a new start"
    )
    assert again.generation == 1
    world = await workers_by_role(job, "server 0", "server 1", "worker 0", "worker 1")
    for name in ("worker 0", "worker 1"):
        await world[name].exits(0)
    assert await node.exits() == 0
    for name in ("serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"):
        assert node.text(name)


@story
async def test_a_nursery_that_dies_costs_its_node_one_start_and_disturbs_no_other(job: Job) -> None:
    nodes = [await job.node(*FLAGS) for _ in range(3)]
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    hit = job.node_of(world["worker 0"])
    os.kill(hit.nursery(), SIGKILL)
    again = await job.told.until(
        lambda: next((w for w in job.workers if w.node == hit.id and w is not world["worker 0"]), None),
        "worker 0 starts again",
    )
    assert roster(again)["revision"] == 1
    assert not world["worker 1"].ended
    await again.exits(0)
    await world["worker 1"].exits(0)
    assert [await node.exits() for node in nodes] == [0, 0, 0]


@story
async def test_with_np_the_host_that_servers_names_serves_at_its_port_and_comes_back_there(job: Job) -> None:
    endpoint = f"127.0.0.2:{free_ports(1)[0]}"
    flags = ("--np", "2", "--servers", endpoint, "--worker-num", "1", "--lease-ttl", "2")
    nodes = [await job.node(*flags, "--host", "127.0.0.4")]
    await nodes[0].says(r"waiting for server 0 on 127\.0\.0\.2$")
    serving = await job.node(*flags, "--host", "127.0.0.2")
    nodes.append(await job.node(*flags, "--host", "127.0.0.3"))
    world = await workers_by_role(job, "server 0", "worker 0", "worker 1")
    assert world["server 0"].node == serving.id
    assert world["server 0"].env["PADDLE_CURRENT_ENDPOINT"] == endpoint
    await serving.killed()
    again = await job.node(*flags, "--host", "127.0.0.2")
    server = (await workers_by_role(job, "server 0"))["server 0"]
    assert (server.node, server.env["PADDLE_CURRENT_ENDPOINT"]) == (again.id, endpoint)
    for name in ("worker 0", "worker 1"):
        assert not world[name].ended
        await world[name].exits(0)
    assert [await node.exits() for node in (*nodes, again)] == [0, 0, 0]
