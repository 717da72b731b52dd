"""The port for monitors of a real agent whose file descriptors are used up."""

from __future__ import annotations

import asyncio
import sys

import aiohttp

from tests.support.awaited_events import LIMIT_S
from tests.support.connection_flood import HALF, crowd
from tests.support.etcd_servers import free_ports
from tests.support.impostor_node import Ghost, read_everything
from tests.support.job_harness import Job, story

GREEDY = """
import os, resource, runpy, socket, sys, threading

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
test = socket.socket(socket.AF_UNIX)
test.connect(sys.argv[1])

def take():
    test.recv(1)
    try:
        while True:
            os.dup(0)
    except OSError:
        test.send(b"x")

threading.Thread(target=take, daemon=True).start()
sys.argv = ["launcher", *sys.argv[sys.argv.index("launcher") + 1 :]]
runpy.run_module("launcher", run_name="__main__", alter_sys=True)
"""
"""An agent that takes all descriptors that are left when the test says so, and then says that it has them."""

FEW_FILES = """
import os, resource, sys

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
os.execv(sys.argv[1], sys.argv[1:])
"""


@story
async def test_an_agent_without_a_free_descriptor_answers_probes_and_monitors(job: Job) -> None:
    came: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    path = str(job.folder / "greedy")
    server = await asyncio.start_unix_server(lambda *streams: came.put_nowait(streams), path)
    (port,) = free_ports(1)
    greedy = (sys.executable, str(job.write("greedy.py", GREEDY)), path)
    node = await job.node("--metrics-port", str(port), within=greedy)
    await node.says("metrics: http")
    (worker,) = await job.world(1, 1)
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await came.get()
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        assert await _answers(port) == [200] * 9
        for said in (b"", HALF):
            async with crowd(port, 20, said):
                assert await _answers(port) == [200] * 9
    writer.close()
    server.close()
    await worker.exits(0)
    assert await node.exits() == 0
    (warned,) = [line for line in node.lines if "descriptor" in line]
    assert "no file descriptor is free (ulimit -n 256)" in warned


@story
async def test_links_of_nodes_that_do_not_exist_leave_an_agent_with_few_files_enough_to_answer(job: Job) -> None:
    (port,) = free_ports(1)
    node = await job.node("--metrics-port", str(port), within=(sys.executable, "-c", FEW_FILES))
    await node.says("metrics: http")
    (worker,) = await job.world(1, 1)
    view = await read_everything(job)
    async with asyncio.timeout(LIMIT_S):
        ghosts = [await Ghost.linked(view, node, f"10.9.8.7-ghost{number}") for number in range(300)]
        assert await _answers(port) == [200] * 9
        await asyncio.gather(*(ghost.is_closed() for ghost in ghosts))
    await worker.exits(0)
    assert await node.exits() == 0
    assert not [line for line in node.lines if "descriptor" in line]


async def _answers(port: int) -> list[int]:
    """Three rounds of three questions, each on a connection of its own."""
    answers = []
    for path in ("metrics", "healthz", "readyz") * 3:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/{path}") as answer:
            answers.append(answer.status)
    return answers
