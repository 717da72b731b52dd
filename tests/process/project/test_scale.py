"""What a membership change asks of a real etcd, by its own count: as much for each agent, however many there are."""

from __future__ import annotations

import asyncio

import pytest

from elastic.store.embedded import EmbeddedEtcd
from tests.bench.crowdparts import Part
from tests.bench.scale import LEADS_MAX, Meter

Calls = dict[str, float]
SIZES = (10, 20)
FIRST_LISTINGS = (1, 2)
"""How often a leader lists: once more where somebody wrote after its listing and before its watch began (`Mirror`)."""


async def _story(size: int, *, leader: bool) -> tuple[Calls, Calls, Calls, int]:
    """The calls of connecting, of meeting, and of losing one; and how many tried to lead after that."""
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
            assert (await part.run()).generation == 1, "all join in one generation"
            meeting = await calls()
            agents = part.crowd.agents
            victim = await part.kill(next(one.number for one in agents if one.leads is leader))
            await part.expect()
            await part.prove(victim)
            await part.heard()
            assert (await part.run()).generation == 2
            sent = await part.sent()
            return connecting, meeting, await calls(), sent["lead", True] + sent["lead", False]
        finally:
            await part.close()


@pytest.mark.parametrize("size", SIZES)
def test_each_agent_asks_as_much_of_etcd_however_many_join_and_all_join_in_one_generation(size: int) -> None:
    connecting, meeting, losing, leads = asyncio.run(_story(size, leader=False))
    # The job's documents in two ranges, its own key; one watch; a lease.
    assert connecting == {"Range": 3 * size, "Watch": size, "LeaseGrant": size}
    # All register at once; all but one come second, and register again in the job that the first one began. The first
    # leads: it lists and watches everything. Then the generation, with its go.
    assert meeting.pop("Range") in FIRST_LISTINGS
    assert meeting == {"Txn": size + (size - 1) + 1, "Watch": 1}
    # A generation, an outcome of each survivor, a go. Nobody looks for another node.
    assert losing == {"Txn": 1 + (size - 1) + 1, "LeaseRevoke": 1}
    assert leads == 0


@pytest.mark.parametrize("size", SIZES)
def test_few_agents_try_to_take_the_place_of_a_leader_that_is_lost(size: int) -> None:
    _, _, losing, leads = asyncio.run(_story(size, leader=True))
    assert 1 <= leads <= LEADS_MAX
    # Besides, the new leader lists and watches everything.
    assert losing.pop("Range") in FIRST_LISTINGS
    assert losing == {"Txn": leads + 1 + (size - 1) + 1, "LeaseRevoke": 1, "Watch": 1}
