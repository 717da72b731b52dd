"""What can be done to a job, a piece of a fault each."""

from __future__ import annotations

import random
from collections.abc import Callable

from elastic.model import Generation
from elastic.proposals import Transaction
from elastic.store.base import Put
from tests.sim.nodes import Node, Observer
from tests.sim.world import World

EVENTS_MIN = 200
"""A run has at least so many events."""
STORES_MAX = 4
"""The store is not replaced more often in one run."""


class KillAtStep(Observer):
    """Kills the proposer at one step of its next proposal: before it arrives, or once it is carried out."""

    def __init__(self, world: World, kind: str, power: bool) -> None:
        self.kind = kind
        self.power = power
        self.armed = True
        world.observe(self)

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """The proposal is in the store, its answer is on the way."""
        if self.armed and transaction.kind == self.kind and node.alive:
            self.armed = False
            world.counts[f"fault proposer lost after {self.kind}"] += 1
            (world.kill_node if self.power else world.kill_agent)(node)

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """Nothing to do."""


class EmptyAtStep(Observer):
    """Replaces the store by an empty one in the moment in which something was written."""

    def __init__(self, world: World, kind: str, seconds: float) -> None:
        self.kind = kind
        self.seconds = seconds
        world.observe(self)

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """It is in the store, and will not be there any more."""
        if self.kind and transaction.kind == self.kind:
            world.counts[f"fault store empty after {self.kind}"] += 1
            self.kind = ""
            world.after(0.0, lambda: empty(world, self.seconds))


def alive(world: World) -> list[Node]:
    """Agents that live and have not ended."""
    return [node for node in world.nodes.values() if node.alive and node.exit_code is None]


def pick(world: World, rng: random.Random) -> Node | None:
    """One of them, if there is one."""
    nodes = alive(world)
    return rng.choice(nodes) if nodes else None


def cut_for(world: World, node: Node, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    """A node reaches nobody for so long."""
    node.cut, node.silent_at = True, world.now
    world.log(f"{node.name}: cut off")

    def back() -> None:
        node.cut, node.silent_at = False, 1e9
        world.log(f"{node.name}: reaches the others again")
        world.relist(node)
        then()

    world.after(seconds, back)


def astray_for(world: World, node: Node, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    """A node does not reach the store for so long, and is heard by the others."""
    node.astray = True
    world.log(f"{node.name}: does not reach the store")

    def back() -> None:
        node.astray = False
        world.log(f"{node.name}: reaches the store again")
        world.relist(node)
        then()

    world.after(seconds, back)


def outage(world: World, seconds: float, then: Callable[[], None] = lambda: None) -> None:
    """The store is away for so long; then every lease counts anew."""
    if not world.store_up:
        return
    world.store_up = False
    world.log(f"the store is away for {seconds:.1f} s")

    def back() -> None:
        world.store_up = True
        world.store.prolong(world.now)
        world.log("the store is back")
        for node in alive(world):
            world.relist(node)
        then()

    world.after(seconds, back)


def empty(world: World, seconds: float) -> None:
    """The store is away for so long, and comes back without anything in it."""
    if world.store_up and world.store_number < STORES_MAX:
        world.store_up = False

        def back() -> None:
            world.replace_store()
            world.store_up = True

        world.after(seconds, back)


def thaw(world: World, node: Node) -> None:
    """A node or an agent that stood still goes on."""
    if node.alive and (node.frozen or node.agent_frozen):
        world.log(f"{node.name}: goes on")
        world.thaw(node)


def start(world: World, host: str) -> None:
    """A node comes."""
    world.start_node(host)


def worker_ends(world: World, rng: random.Random, code: int) -> None:
    """A worker of some node ends with this code; not before the run has had its events."""
    nodes = [node for node in alive(world) if node.workers is not None]
    if nodes and world.steps > EVENTS_MIN:  # A run that has used up its budget is over.
        node = rng.choice(nodes)
        assert node.workers is not None
        world.end_worker(node, node.workers, code)


def operator_writes(world: World, key: str, value: bytes) -> None:
    """A person puts something into the store."""
    world.store.txn((), (Put(key, value),))
    world.deliver()
