"""Plays about the successor of a nursery: what dies while it is prepared, and when it has the node (`registry`)."""

from __future__ import annotations

from elastic.core.model import Generation
from tests.sim.calm import Calm, Expected, went
from tests.sim.nodes import Node
from tests.sim.plays.meetings import SOON_S, members_of
from tests.sim.world import World


def _prepares(world: World, node: Node, ready_in_s: float) -> None:
    """The nursery of a node has a successor, whatever was prepared before."""
    node.learned, node.successor_ready_at = False, None
    world.prepare_successor(node)
    node.successor_ready_at = world.now + ready_in_s


def _starts(world: World, watch: Calm, g: int, after: str) -> None:
    """The job starts again soon, and its workers find what the successors have loaded."""
    text = f"{after}, and nothing starts"
    watch.expect(world, Expected("6", text, world.now + 3 * SOON_S, lambda view: went(view) > g))


def nursery_dies_preparing(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A nursery dies while its successor imports, or is ready: both are gone, and a fresh nursery starts workers."""
    _prepares(world, node, world.random.choice([0.0, 60.0]))
    world.kill_nursery(node)
    _starts(world, watch, old.g, f"the nursery of {node.name} died, with its successor")


def successor_dies(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A successor dies while it is prepared, or when it is ready: nothing else is touched."""
    watch.expect_nothing(world)
    _prepares(world, node, world.random.choice([0.0, 60.0]))
    world.kill_successor(node)
    world.after(1.0, lambda: watch.store_is_back(world))


def succeeded_and_dies(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Every node has a successor that is ready as a script fails; they take over, and one of them dies after that."""
    for one in members_of(world, old):
        _prepares(world, one, 0.0)
    if node.workers is None:
        return
    world.end_worker(node, node.workers, 1)
    _starts(world, watch, old.g, f"{node.name} failed as successors were ready")

    def dies() -> None:
        if node.learned and node.alive:
            world.counts["a nursery died that was a successor"] += 1
            world.kill_nursery(node)

    world.after(world.random.uniform(0.0, 3.0), dies)


def agent_dies_preparing(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """An agent is killed while a successor is prepared, and starts again: its lock is free once both are gone."""
    _prepares(world, node, world.random.choice([0.0, 60.0]))
    world.kill_agent(node)
    _starts(world, watch, old.g, f"the agent of {node.name} was killed")

    def again() -> None:
        fresh = world.start_node(node.host)

        def looks() -> None:
            if world.now < node.lock_until or node.workers is not None:
                world.counts["a lock was held by a successor"] += 1
                world.after(0.05, looks)
            world.prove_dead_to(fresh, node)

        looks()

    world.after(world.random.uniform(0.0, 0.1), again)
