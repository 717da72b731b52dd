"""Deaths at bad moments: in a flood, in a loop, while a world is made, while another agent stands still.

Where leases are long, only links can have told of a death.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
from collections.abc import AsyncIterator
from signal import SIGCONT, SIGKILL, SIGSTOP

import psutil
import pytest

from launcher.agent.node_id import MARK
from tests.support.agent_process import Node
from tests.support.job_harness import LONG_TTL_S, QUICK_TTL_S, Job, story, three_nodes

HELD = 150
"""Connections that say nothing, at each port. The door keeps 64 of them."""
PAUSE_S = 0.001
"""Between two connections of one stranger: the test's own loop is to hear the workers, too."""
GARBAGE = (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b'["prove"]\n', b"elastic-launch 2 x\n" * 50)
DEATHS = 10
GONE = r"was lost"


def port_of(node: Node) -> int:
    """Where the agent takes links."""
    listens = [one for one in psutil.Process(node.process.pid).net_connections("tcp") if one.status == "LISTEN"]
    (port,) = {one.laddr.port for one in listens}
    return int(port)


@contextlib.asynccontextmanager
async def flooded(port: int) -> AsyncIterator[None]:
    """A port that strangers connect to all the time: they are silent, say nonsense, or reset."""
    begun = asyncio.Event()

    async def strangers() -> None:
        held: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        try:
            for count in itertools.count():
                made = socket.socket()
                held.append(made)
                made.setblocking(False)
                await loop.sock_connect(made, ("127.0.0.1", port))
                with contextlib.suppress(OSError):
                    made.send(GARBAGE[count % len(GARBAGE)])
                if count % 3 == 2:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    held.pop().close()
                if len(held) > HELD:
                    begun.set()
                    held.pop(0).close()
                await asyncio.sleep(PAUSE_S)
        except OSError:
            begun.set()  # Nobody listens any more.
        finally:
            for one in held:
                one.close()

    task = asyncio.create_task(strangers())
    try:
        await begun.wait()
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@story
async def test_a_death_in_a_flood_of_connections_is_noticed_by_the_link(job: Job) -> None:
    nodes = await three_nodes(job)
    world = await job.world(1, 3)
    dead = job.node_of(world[2])
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(flooded(port_of(node)))
        dead.signal(SIGKILL)
        await job.world(2, 2)


@story
async def test_the_death_of_the_first_in_a_flood_of_connections_is_noticed_by_the_link(job: Job) -> None:
    nodes = await three_nodes(job)
    world = await job.world(1, 3)
    async with contextlib.AsyncExitStack() as stack:
        for node in nodes:
            await stack.enter_async_context(flooded(port_of(node)))
        dead = job.node_of(world[0])
        dead.signal(SIGKILL)
        await job.world(2, 2)


@pytest.mark.timeout(300)  # Thirty processes start one after another.
@story
async def test_ten_deaths_in_a_row_are_noticed_by_the_link_and_leave_no_descriptor_behind(job: Job) -> None:
    flags = ("--np", "3", "--scale-up-interval", "0.1")
    nodes = [await job.node(*flags, ttl_s=LONG_TTL_S, join_window_s=0.1) for _ in range(3)]
    world = await job.world(1, 3)
    first = job.node_of(world[0])
    survivors, doomed = nodes[:], job.node_of(world[2])
    survivors.remove(doomed)
    counts: list[dict[str, int]] = []
    for _ in range(DEATHS):
        doomed.signal(SIGKILL)
        following = await job.node(*flags, ttl_s=LONG_TTL_S, join_window_s=0.1)
        await first.says(rf"{doomed.id} {GONE}")
        await doomed.exits()
        await following.says("generation")
        world = await job.newest_world(3)
        assert following.id in {worker.node for worker in world}
        doomed = following
        counts.append({node.name: open_files(node) for node in survivors})
    async with asyncio.timeout(20.0):
        while any(open_files(node) > counts[0][node.name] for node in survivors):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # What the newest world has opened for a moment is closed by itself.
    assert not any("only the leases" in line for node in nodes for line in node.lines)


def open_files(node: Node) -> int:
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


@story
async def test_a_first_node_that_stands_still_loses_its_place_with_its_lease_and_comes_back_to_the_job(
    job: Job,
) -> None:
    flags = ("--np", "3", "--scale-up-interval", "0.1")
    for _ in range(3):
        await job.node(*flags, ttl_s=QUICK_TTL_S)
    world = await job.world(1, 3)
    frozen = job.node_of(world[0])
    frozen.signal(SIGSTOP)
    again = await job.newest_world(2)
    assert [worker.node for worker in again] == [world[1].node, world[2].node]
    frozen.signal(SIGCONT)
    last = await job.newest_world(3)
    assert [worker.node for worker in last] == [world[1].node, world[2].node, world[0].node]
    assert not any("its process is gone" in line for node in job.nodes for line in node.lines)


@story
async def test_a_worker_that_fails_while_another_agent_stands_still_costs_one_restart_after_its_lease(
    job: Job,
) -> None:
    flags = ("--np", "3", "--scale-up-interval", "0.1")
    for _ in range(3):
        await job.node(*flags, ttl_s=QUICK_TTL_S)
    world = await job.world(1, 3)
    frozen = job.node_of(world[1])
    frozen.signal(SIGSTOP)
    await world[2].exits(1)
    again = await job.newest_world(2)
    assert [worker.node for worker in again] == [world[0].node, world[2].node]
    frozen.signal(SIGCONT)
    await job.newest_world(3)


@story
async def test_a_first_node_killed_while_it_waits_for_others_is_followed_by_the_next(job: Job) -> None:
    first = await job.node("--np", "2:3", ttl_s=LONG_TTL_S, join_window_s=3.0)
    await first.says("1 of 2 nodes is here")
    for _ in range(2):
        await job.node("--np", "2:3", ttl_s=LONG_TTL_S, join_window_s=3.0)
    await first.says("2 of 3 nodes are here|generation 1")
    first.signal(SIGKILL)
    world = await job.newest_world(2)
    assert first.id not in {worker.node for worker in world}


@story
async def test_a_first_node_killed_as_it_publishes_a_generation_is_followed_by_the_next(job: Job) -> None:
    first = await job.node("--np", "3", ttl_s=LONG_TTL_S)
    await first.says("1 of 3 nodes is here")
    for _ in range(2):
        await job.node("--np", "3", ttl_s=LONG_TTL_S)
    await first.says("generation 1: 3 nodes")
    first.signal(SIGKILL)
    world = await job.newest_world(2)
    assert first.id not in {worker.node for worker in world}


@story
async def test_a_node_killed_as_its_spare_joins_is_replaced_by_it(job: Job) -> None:
    for _ in range(2):
        await job.node("--np", "2", "--scale-up-interval", "0.1", ttl_s=LONG_TTL_S)
    world = await job.world(1, 2)
    spare = await job.node("--np", "2", "--scale-up-interval", "0.1", ttl_s=LONG_TTL_S)
    await spare.says(rf"^\[elastic-launch [^ ]+-{MARK}\] ")
    job.node_of(world[1]).signal(SIGKILL)
    await job.told.until(lambda: any(worker.node == spare.id for worker in job.workers), "a worker of the spare")
    # In the third generation, if the loss was noticed before the spare was linked.
    again = await job.newest_world(2)
    assert [worker.node for worker in again] == [world[0].node, spare.id]
