"""Real agents start servers and workers by the command lines of the documentation, and each knows its place."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.etcd_servers import free_ports
from tests.support.job_harness import Job, story

TELL = """
import dataclasses, json, os, pathlib, signal, sys
import elastic

me = elastic.env()
folder = pathlib.Path(sys.argv[1])
told = {**dataclasses.asdict(me), "roster": json.loads(pathlib.Path(me.roster_file).read_text())}
(folder / f"{me.role}.{me.index}.json").write_text(json.dumps(told))
if me.role == "server":
    os.close(os.open(folder / f"{me.index}.fifo", os.O_WRONLY))  # Waits for the reader.
    signal.pause()
elif (me.role, me.index) == ("worker", 0):
    for fifo in folder.glob("*.fifo"):  # When the workers have ended, the servers are stopped.
        os.close(os.open(fifo, os.O_RDONLY))
"""

MEET = """
import signal, sys
import elastic

me = elastic.env()
if me.role == "server":
    signal.pause()
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([10.0**me.rank])
dist.all_reduce(total)
sys.stdout.write(f"together {total.item():.0f}\\n")
dist.barrier()
dist.destroy_process_group()
"""


def places(job: Job, servers: int) -> Path:
    """A folder where every process says its place, and each server that it has said it."""
    folder = job.folder / "places"
    folder.mkdir()
    for index in range(servers):
        os.mkfifo(folder / f"{index}.fifo")
    return folder


def told(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}


@story
async def test_two_servers_and_two_workers_start_on_one_machine(job: Job) -> None:
    folder = places(job, 2)
    script = (str(job.write("tell.py", TELL)), str(folder))
    node = await job.node("--server-num", "2", "--worker-num", "2", script=script, server=False)
    assert await node.exits() == 0
    found = told(folder)
    assert sorted(found) == ["server.0", "server.1", "worker.0", "worker.1"]
    servers = [found["server.0"]["current"], found["server.1"]["current"]]
    assert {tuple(place["servers"]) for place in found.values()} == {tuple(servers)}
    assert {place["trainers"] for place in found.values()} == {2}
    assert [found[name]["rank"] for name in sorted(found)] == [-1, -1, 0, 1]
    assert found["worker.0"]["roster"]["servers"] == servers
    logs = sorted(path.name for path in (node.folder / "log").iterdir() if "log." in path.name)
    assert [name for name in logs if name.startswith(("server", "worker"))] == [
        *("serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1")
    ]


@story
async def test_lists_start_each_process_on_its_host_and_port(job: Job) -> None:
    folder = places(job, 2)
    first, second, third, fourth = free_ports(4)
    lists = (
        f"--servers=127.0.0.1:{first},127.0.0.2:{fourth}",
        f"--workers=127.0.0.2:{second},127.0.0.1",
        f"--heter-workers=127.0.0.1:{third}",
    )
    script = (str(job.write("tell.py", TELL)), str(folder))
    nodes = [await job.node(*lists, "--host", host, script=script) for host in ("127.0.0.1", "127.0.0.2")]
    for node in nodes:
        assert await node.exits() == 0
    found = told(folder)
    assert {name: place["node_id"].partition("-")[0] for name, place in found.items()} == {
        "server.0": "127.0.0.1",
        "server.1": "127.0.0.2",
        "worker.0": "127.0.0.2",
        "worker.1": "127.0.0.1",
        "heter.0": "127.0.0.1",
    }
    assert found["server.1"]["current"] == f"127.0.0.2:{fourth}"
    assert found["worker.0"]["current"] == f"127.0.0.2:{second}"
    assert found["heter.0"]["current"] == f"127.0.0.1:{third}"
    assert (found["heter.0"]["rank"], found["heter.0"]["world_size"]) == (2, 3)


@story
async def test_workers_form_torchs_process_group_where_server_0_is_on_another_host(job: Job) -> None:
    (port,) = free_ports(1)
    lists = (f"--servers=127.0.0.1:{port}", "--workers=127.0.0.2,127.0.0.1")
    script = (str(job.write("meet.py", MEET)),)
    nodes = [await job.node(*lists, "--host", host, script=script) for host in ("127.0.0.1", "127.0.0.2")]
    for node in nodes:
        assert await node.exits() == 0
    assert "together 11" in nodes[1].text("workerlog.0")
    assert "together 11" in nodes[0].text("workerlog.1")
