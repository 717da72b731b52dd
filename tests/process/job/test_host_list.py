"""A list of hosts: with a server it fixes order and membership, without one the host that sorts first serves etcd."""

from __future__ import annotations

import os
import socket
from signal import SIGTERM

from tests.support.agent_process import endpoints
from tests.support.etcd_servers import free_ports
from tests.support.host_lists import FIRST, SECOND, SWAPPED, THIRD, static
from tests.support.job_harness import QUICK_TTL_S, Job, story

# --- with a server ------------------------------------------------------------------------------------------------


@story
async def test_with_a_server_ranks_follow_the_list_and_not_the_order_of_arrival(job: Job) -> None:
    ips = ("--ips", f"{THIRD},{FIRST},{SECOND}", "--nproc-per-node", "2")
    nodes = {}
    for host in (FIRST, SECOND, THIRD):
        nodes[host] = await job.node(*ips, "--host", host)
        await nodes[host].says("joined")
    world = await job.world(1, 6)
    order = [nodes[host] for host in (THIRD, FIRST, SECOND)]
    assert [worker.node for worker in world] == [node.id for node in order for _ in range(2)]
    assert [worker.env["GROUP_RANK"] for worker in world] == ["0", "0", "1", "1", "2", "2"]
    assert {worker.env["MASTER_ADDR"] for worker in world} == {THIRD}
    agreed = endpoints(order[0])
    assert [line.rpartition(":")[0] for line in agreed] == [host for host in (THIRD, FIRST, SECOND) for _ in range(2)]
    assert all(endpoints(node) == agreed for node in order)


@story
async def test_every_node_names_the_hosts_that_are_missing_not_only_the_first_in_line(job: Job) -> None:
    ips = ("--ips", f"{FIRST},{SECOND},{THIRD}")
    first = await job.node(*ips, "--host", FIRST)
    await first.says(f"1 of 3 nodes is here; waiting for {SECOND}, {THIRD}$")
    second = await job.node(*ips, "--host", SECOND)
    await second.says(f"2 of 3 nodes are here; waiting for {THIRD}$")
    assert not job.workers


@story
async def test_a_second_node_of_a_host_is_a_spare_that_takes_over_with_rank_0(job: Job) -> None:
    ips = ("--ips", f"{FIRST},{SECOND}")
    first = await job.node(*ips, "--host", FIRST, ttl_s=QUICK_TTL_S)
    await first.says(f"1 of 2 nodes is here; waiting for {SECOND}")
    double = await job.node(*ips, "--host", FIRST, ttl_s=QUICK_TTL_S)
    await double.says("1 of 2 nodes is here")
    second = await job.node(*ips, "--host", SECOND, ttl_s=QUICK_TTL_S)
    assert [worker.node for worker in await job.world(1, 2)] == [first.id, second.id]
    await double.says("spare: generation 1 runs without this node")
    await first.killed()
    assert [worker.node for worker in await job.world(2, 2)] == [double.id, second.id]


@story
async def test_a_host_that_the_jobs_list_does_not_name_is_refused_with_the_list(job: Job) -> None:
    first = await job.node("--ips", f"{FIRST},{SECOND}", "--host", FIRST)
    await first.says("joined")
    other = await job.node("--host", THIRD, "--np", "2")
    await other.says(f"this node is {THIRD}, which is not in --ips of job {job.job_id} .{FIRST},{SECOND}.; add it")
    assert await other.exits() == 3
    second = await job.node("--host", SECOND, "--np", "2")
    await second.says(f"this node uses the job's settings: --ips is {FIRST},{SECOND} there, none here")
    await job.world(1, 2)


# --- without a server ---------------------------------------------------------------------------------------------


@story
async def test_without_a_server_the_nodes_meet_at_the_host_that_sorts_first(job: Job) -> None:
    (port,) = free_ports(1)
    second = await static(job, SECOND, port)
    await second.says(rf"waiting for etcd at {FIRST}:{port}, which {FIRST} hosts \(.*\); giving up in \d+ s$")
    first = await static(job, FIRST, port)
    await first.says(f"this host runs etcd for job {job.job_id} at {FIRST}:{port}; if it goes down, the job pauses")
    world = await job.world(1, 2)
    assert [worker.node for worker in world] == [second.id, first.id]
    assert endpoints(first) == endpoints(second)
    for worker in world:
        await worker.exits(0)
    for node in (first, second):
        assert await node.exits() == 0


@story
async def test_a_swapped_list_is_refused_with_both_and_the_other_node_goes_on_waiting(job: Job) -> None:
    (port,) = free_ports(1)
    wrong = await static(job, SECOND, port)
    await wrong.says("waiting for etcd")
    right = f"{FIRST},{SECOND}"
    first = await static(job, FIRST, port, ips=right)
    await wrong.says(f"--ips of this node is {SWAPPED}, that of job {job.job_id} is {right}")
    assert await wrong.exits() == 3
    assert not first.ended
    second = await static(job, SECOND, port, ips=right)
    assert [worker.node for worker in await job.world(1, 2)] == [first.id, second.id]


@story
async def test_the_host_that_serves_leaves_last(job: Job) -> None:
    (port,) = free_ports(1)
    first = await static(job, FIRST, port)
    second = await static(job, SECOND, port)
    await job.world(1, 2)
    first.signal(SIGTERM)
    (worker,) = await job.world(2, 1)
    assert worker.node == second.id
    await first.says("1 node of another host is still registered; etcd keeps running until they have left")
    await worker.exits(0)
    assert await second.exits() == 0
    assert await first.exits() == 143


@story
async def test_when_the_host_that_serves_comes_back_the_job_forms_again(job: Job) -> None:
    (port,) = free_ports(1)
    first = await static(job, FIRST, port, ttl_s=QUICK_TTL_S)
    second = await static(job, SECOND, port, ttl_s=QUICK_TTL_S)
    before = await job.world(1, 2)
    await first.killed()
    for worker in before:
        await worker.ends()
    again = await static(job, FIRST, port, ttl_s=QUICK_TTL_S)
    assert [worker.node for worker in await job.newest_world(2)] == [second.id, again.id]


@story
async def test_a_node_whose_job_is_not_the_one_that_is_served_says_what_to_look_at(job: Job) -> None:
    (port,) = free_ports(1)
    await static(job, FIRST, port)
    lost = await static(job, SECOND, port, "--job-id", "another", "--connect-timeout", "3")
    await lost.says(f"{FIRST} runs etcd, but has not created job another yet")
    await lost.says(rf"within 3 s .*; does the same command run on {FIRST}, with the same list of hosts\?")
    assert await lost.exits() == 4


@story
async def test_a_port_in_use_is_told_before_anything_is_registered(job: Job) -> None:
    with socket.socket() as other:
        other.bind((FIRST, 0))
        other.listen()
        port = other.getsockname()[1]
        node = await static(job, FIRST, port)
        await node.says(f"port {port} of {FIRST} is in use: .* use another --serve-port, the same on every node$")
        assert await node.exits() == 2
    assert not (node.folder / "log" / "launcher.log").exists()


@story
async def test_a_list_of_this_one_host_is_an_ordinary_job_of_one_node(job: Job) -> None:
    node = await job.node("--ips", "localhost", server=False)
    (worker,) = await job.world(1, 1)
    assert worker.env["MASTER_ADDR"] == "localhost"
    assert endpoints(node)[0].startswith("localhost:")
    await worker.exits(0)
    assert await node.exits() == 0


@story
async def test_a_node_that_several_entries_could_be_is_asked_for_its_host(job: Job) -> None:
    node = await job.node("--ips", SWAPPED, server=False)
    await node.says(f"{SECOND} and {FIRST} of --ips {SWAPPED} are all addresses of this machine; choose one")
    assert await node.exits() == 2


ROLES = """
import os, signal, sys
role, host, servers = (os.environ[name] for name in ("TRAINING_ROLE", "POD_IP", "PADDLE_PSERVERS_IP_PORT_LIST"))
print(role, host, "of", servers, flush=True)
up = sys.argv[1] + "/up-"
if role == "PSERVER":
    with open(up + host, "w"):
        signal.pause()
for server in servers.split(","):
    open(up + server.partition(":")[0]).close()
"""
"""Servers stay until they are stopped, workers are done as soon as every server has said who it is."""


@story
async def test_hosts_that_are_named_as_servers_and_workers_meet_in_the_same_way(job: Job) -> None:
    port, one, two = free_ports(3)
    script = (str(job.write("roles.py", ROLES)), str(job.folder))
    lists = ("--servers", f"{SECOND}:{two},{FIRST}:{one}", "--workers", f"{FIRST},{SECOND}", "--console", "all")
    nodes = {}
    for host in (SECOND, FIRST):
        os.mkfifo(job.folder / f"up-{host}")
        flags = (*lists, "--host", host, "--serve-port", str(port))
        nodes[host] = await job.node(*flags, server=False, script=script)
    await nodes[FIRST].says(f"this host runs etcd for job {job.job_id} at {FIRST}:{port}")
    for host, node in nodes.items():
        for role in ("TRAINER", "PSERVER"):
            await node.shows(f"{role} {host} of {SECOND}:{two},{FIRST}:{one}$")
        assert await node.exits() == 0


# --- PaddleCloud --------------------------------------------------------------------------------------------------


@story
async def test_paddleclouds_variables_stand_for_the_list_and_the_host(job: Job) -> None:
    (port,) = free_ports(1)
    nodes = {}
    for number, host in enumerate((SECOND, FIRST)):
        cloud = {
            "POD_IP": host,
            "PADDLE_TRAINERS": SWAPPED,
            "PADDLE_TRAINER_ID": str(number),
            "PADDLE_TRAINER_ENDPOINTS": f"{SECOND}:6170,{FIRST}:6170",
            "PADDLE_TRAINERS_NUM": "2",
            "PADDLE_PORT": "6170",
            "TRAINER_PORTS_NUM": "1",
        }
        nodes[host] = await job.node("--serve-port", str(port), server=False, environ=cloud)
    for host, node in nodes.items():
        await node.says(
            f"PaddleCloud's variables are used: PADDLE_TRAINERS gives --ips {SWAPPED}, and this node is {host}"
        )
    world = await job.world(1, 2)
    assert [worker.node for worker in world] == [nodes[SECOND].id, nodes[FIRST].id]
    for worker in world:
        await worker.exits(0)
    for node in nodes.values():
        assert await node.exits() == 0
