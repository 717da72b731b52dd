"""What a membership change asks of a real etcd, by its own count: as much for each agent, however many there are."""

from __future__ import annotations

import asyncio

from elastic.store.embedded import EmbeddedEtcd
from tests.bench.crowdparts import Part
from tests.bench.scale import Meter

Calls = dict[str, float]


async def _story(size: int) -> tuple[Calls, Calls, Calls, int]:
    """The calls of connecting, of meeting, and of losing one; and the generation in which all met."""
    async with EmbeddedEtcd() as etcd:
        meter = Meter(etcd.endpoint)

        async def calls() -> Calls:
            await asyncio.to_thread(meter.read)
            return meter.calls

        part = Part(etcd.endpoint, "j", size, 1, range(size))
        try:
            await calls()
            await part.connect()
            connecting = await calls()
            await part.meet()
            met = (await part.run()).generation
            meeting = await calls()
            agents = part.crowd.agents
            # One that another follows: not the last in line.
            followed = {
                following[1] for agent in agents if (following := agent.core.facts.succession.following) is not None
            }
            victim = await part.kill(next(one.number for one in agents if one.node in followed and not one.proposes))
            await part.expect()
            await part.prove(victim)
            await part.heard()
            assert (await part.run()).generation == met + 1
            return connecting, meeting, await calls(), met
        finally:
            await part.close()


def test_each_agent_asks_as_much_of_etcd_however_many_join_and_all_join_in_one_generation() -> None:
    async def both() -> list[tuple[int, tuple[Calls, Calls, Calls, int]]]:
        return [(size, await _story(size)) for size in (10, 20)]

    for size, (connecting, meeting, losing, met) in asyncio.run(both()):
        assert met == 1
        # The job's documents in two ranges, its own key; one watch; a lease.
        assert connecting == {"Range": 3 * size, "Watch": size, "LeaseGrant": size}
        # All register at once; all but one come second, and join the job that the first one began. The first looks for
        # somebody older, and lists and watches everything; the others learn with the answer who is before them in line,
        # and their watches take that one on. Then the generation, with its go.
        assert meeting == {"Txn": size + 1, "Range": 2, "Watch": 1}
        # A generation, an outcome of each survivor, a go; who followed the lost one follows another.
        assert losing == {"Txn": 1 + (size - 1) + 1, "LeaseRevoke": 1, "Range": 1}
