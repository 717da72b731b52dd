"""A job of a thousand nodes: its first start, and the loss of a rack together with the leader."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from elastic.core.model import Generation, Np
from elastic.core.transactions import Transaction
from tests.sim.checks import Promises
from tests.sim.nodes import Node, Observer
from tests.sim.plays.meetings import comes
from tests.sim.rules import Rules
from tests.sim.world import World

NODES = 1000
RACK = 200
COME_S = 0.3
"""All nodes register within this time."""
MET_S = 1.0
RESUMED_S = 3.0
"""The rest of the job goes on within this time after the loss; a second of it is the time that workers get to stop."""
TRIES_MAX = 16
"""Nodes that try to take the lead when it is free."""


class Counts(Observer):
    """What was sent and started."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.started: Counter[int] = Counter()
        """Starts of workers in each generation."""

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """Count it."""
        self.sent[transaction.kind] += 1
        return 0.0

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """Count it."""
        self.started[generation.g] += 1


@pytest.mark.timeout(600)
def test_a_thousand_nodes_start_together_and_go_on_without_a_rack_and_the_leader() -> None:
    world, counts = World(5), Counts()
    world.observe(Promises(), Rules(), counts)
    world.size, world.np = NODES, Np(low=NODES // 2, high=NODES, first=NODES)
    world.spec = msgspec.structs.replace(world.spec, np=world.np, ips=(), slots=1)
    world.links, world.watch_faults, world.job.work_s = True, False, 1e9
    for number in range(NODES):
        world.after(COME_S * number / NODES, lambda number=number: comes(world, f"h{number}"))  # type: ignore[misc]
    world.run_to(COME_S + MET_S, stop=lambda: counts.started[1] == NODES)
    assert (counts.sent["form"], counts.started[1], counts.sent["lead"]) == (1, NODES, 0)

    world.run_to(world.now + 1.0)  # Every link is up.
    leader = next(node for node in world.nodes.values() if node.core.facts.leads)
    generation = leader.core.facts.generation
    assert generation is not None
    members = [world.nodes[member.node] for member in generation.members]
    rack = {node.name for node in members[:RACK]} | {leader.name}
    for name in rack:
        world.kill_agent(world.nodes[name])
    left = NODES - len(rack)
    world.run_to(world.now + RESUMED_S, stop=lambda: max(counts.started) > 1 and counts.started.total() == NODES + left)
    assert counts.started[max(counts.started)] == left
    assert 1 <= counts.sent["lead"] <= TRIES_MAX
