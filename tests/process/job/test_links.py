"""What agents know of each other over links: deaths at once, silence that is no death, a store that one cannot reach.

Leases are long in these stories: what happens within them, no lease has told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from signal import SIGCONT, SIGKILL, SIGSTOP

from tests.support.impostor_node import Ghost, read_everything
from tests.support.job_harness import LONG_TTL_S, QUICK_TTL_S, Job, story, three_nodes
from tests.support.lease_expiry import leases_end


class Cable:
    """A way to etcd that can be pulled out: connections through it stand still, and new ones are not taken."""

    def __init__(self, etcd: str) -> None:
        self._host, _, port = etcd.rpartition(":")
        self._port = int(port)
        self._in = asyncio.Event()
        self._in.set()
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def laid(self) -> AsyncIterator[str]:
        """The address at this end."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def pull(self) -> None:
        """Nothing goes through any more."""
        self._in.clear()

    def put_back(self) -> None:
        """What was on its way arrives."""
        self._in.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._in.wait()
            there, here = await asyncio.open_connection(self._host, self._port)
            await asyncio.gather(self._pipe(reader, here), self._pipe(there, writer))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._in.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@story
async def test_a_killed_node_is_noticed_long_before_its_lease_ends(job: Job) -> None:
    nodes = await three_nodes(job)
    world = await job.world(1, 3)
    dead = job.node_of(world[1])
    await dead.killed()
    for node in nodes:
        if node is not dead:
            await node.says(rf"generation 2: 2 nodes, world size 2.*: {dead.id} was lost \(its process is gone\)$")
    await job.world(2, 2)


@story
async def test_a_proven_death_whose_lease_could_not_be_ended_at_once_keeps_no_gate_closed(job: Job) -> None:
    cable = Cable(job.etcd.endpoint)
    async with cable.laid() as here:
        first = await job.node("--np", "2", "--verbose", "--elastic-server", here, ttl_s=LONG_TTL_S)
        await first.says("joined the job")
        await job.node("--np", "2", ttl_s=LONG_TTL_S)
        world = await job.world(1, 2)
        assert job.node_of(world[0]) is first
        dead = job.node_of(world[1])
        cable.pull()
        await dead.killed()
        await first.says("cannot revoke a lease yet")
        cable.put_back()
        (worker,) = await job.world(2, 1)
        await worker.exits(0)
        assert await first.exits() == 0


@story
async def test_the_first_nodes_death_is_noticed_by_the_next_in_line_in_the_same_way(job: Job) -> None:
    await three_nodes(job)
    world = await job.world(1, 3)
    await job.node_of(world[0]).killed()
    again = await job.world(2, 2)
    assert [worker.node for worker in again] == [world[1].node, world[2].node]


@story
async def test_the_first_two_killed_at_once_are_both_noticed_by_the_third(job: Job) -> None:
    await three_nodes(job)
    world = await job.world(1, 3)
    for worker in world[:2]:
        job.node_of(worker).signal(SIGKILL)
    (worker,) = await job.newest_world(1)
    assert worker.node == world[2].node


@story
async def test_an_agent_that_dies_alone_is_replaced_by_a_spare_and_its_worker_is_gone(job: Job) -> None:
    nodes = [await job.node("--np", "2", ttl_s=LONG_TTL_S) for _ in range(2)]
    world = await job.world(1, 2)
    spare = await job.node("--np", "2", ttl_s=LONG_TTL_S)
    await spare.says("spare")
    job.node_of(world[1]).signal(SIGKILL)
    await job.told.until(lambda: world[1].ended or None, "its worker is gone")
    again = await job.newest_world(2)  # The second, unless the proposer had no link to the spare yet.
    assert [worker.node for worker in again] == [world[0].node, spare.id]
    assert len(nodes) == 2


@story
async def test_a_worker_that_loses_its_peer_is_not_blamed_for_it(job: Job) -> None:
    """Its failure and the end of the link come in the same moment, in any order."""
    nodes = await three_nodes(job)
    world = await job.world(1, 3)
    dead = job.node_of(world[2])
    world[1].order("complain", "RuntimeError: Connection closed by peer [127.0.0.1]:1234")
    world[1].order("exit", 1)
    dead.signal(SIGKILL)
    again = await job.newest_world(2)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in again} == {"0"}
    assert len(nodes) == 3


@story
async def test_an_agent_that_stands_still_is_not_dead(job: Job) -> None:
    nodes = await three_nodes(job, "--silence-timeout", "0")
    world = await job.world(1, 3)
    frozen = job.node_of(world[1])
    frozen.signal(SIGSTOP)
    await world[2].exits(1)
    survivor = job.node_of(world[0])
    await survivor.says(rf"waiting for .*{frozen.id}.* to stop (its|their) old workers")
    frozen.signal(SIGCONT)
    again = await job.world(2, 3)
    assert [worker.node for worker in again] == [worker.node for worker in world]
    assert not any("its process is gone" in line for node in nodes for line in node.lines)


@story
async def test_a_node_that_cannot_reach_etcd_trains_on_by_the_word_of_the_first(job: Job) -> None:
    await unreachable(job, 1)


@story
async def test_the_first_node_that_cannot_reach_etcd_trains_on_and_the_next_in_line_takes_its_role(job: Job) -> None:
    await unreachable(job, 0)


async def unreachable(job: Job, who: int) -> None:
    """The node of rank `who` loses etcd for longer than its lease; nothing stops, and it registers again."""
    cables = [Cable(job.etcd.endpoint) for _ in range(3)]
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for cable in cables:
            here = await stack.enter_async_context(cable.laid())
            nodes.append(await job.node("--np", "3", "--elastic-server", here, ttl_s=QUICK_TTL_S))
        world = await job.world(1, 3)
        alone = job.node_of(world[who])
        cable = cables[nodes.index(alone)]
        cable.pull()
        await alone.says("etcd does not answer")
        await leases_end(job, [alone], seen_by=[node for node in nodes if node is not alone])
        cable.put_back()
        await alone.says("registered again")
        assert [worker.ended for worker in world] == [False] * 3
        for worker in world:
            await worker.exits(0)
        assert [await node.exits() for node in nodes] == [0, 0, 0]


@story
async def test_etcd_that_stands_still_for_longer_than_the_leases_stops_nobody(job: Job) -> None:
    cables = [Cable(job.etcd.endpoint) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for cable in cables:
            here = await stack.enter_async_context(cable.laid())
            nodes.append(await job.node("--np", "2", "--elastic-server", here, ttl_s=QUICK_TTL_S))
        world = await job.world(1, 2)
        for cable in cables:
            cable.pull()
        for node in nodes:
            await node.says("etcd does not answer")
        await leases_end(job, nodes)
        for cable in cables:
            cable.put_back()
        for node in nodes:
            await node.says("registered again")
        assert [worker.ended for worker in world] == [False] * 2
        for worker in world:
            await worker.exits(0)
        assert [await node.exits() for node in nodes] == [0, 0]


# Strangers who can read the job's keys


@story
async def test_a_reader_of_the_keys_cannot_prolong_the_right_to_run_of_a_node(job: Job) -> None:
    """A review did this: a node ID that no document has proves the secret, and grants a day whenever it is asked."""
    cable = Cable(job.etcd.endpoint)
    async with cable.laid() as here:
        flags = ("--np", "2", "--etcd-outage-timeout", "600")
        first = await job.node(*flags, ttl_s=QUICK_TTL_S)
        await first.says("joined the job")
        cut = await job.node(*flags, "--elastic-server", here, ttl_s=QUICK_TTL_S)
        world = await job.world(1, 2)
        view = await read_everything(job)
        cable.pull()
        await cut.says("etcd does not answer")
        ghost = await Ghost.linked(view, cut)
        task = asyncio.create_task(ghost.is_closed())
        await first.killed()
        await cut.says("lease expired")
        await job.told.until(lambda: world[1].ended or None, "its worker is gone")
        assert ghost.granted > 0
        cable.put_back()
        await task  # Once the store answers, the agent sees that no such node is registered.
        (worker,) = await job.world(2, 1)
        await worker.exits(0)
        assert await cut.exits() == 0


@story
async def test_links_of_nodes_that_do_not_exist_are_closed_and_cost_the_job_nothing(job: Job) -> None:
    nodes = await three_nodes(job)
    world = await job.world(1, 3)
    view = await read_everything(job)
    ghosts = [await Ghost.linked(view, node, f"10.9.8.7-ghost{number}") for node in nodes for number in range(100)]
    await asyncio.gather(*(ghost.is_closed() for ghost in ghosts))
    for worker in world:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0, 0]
