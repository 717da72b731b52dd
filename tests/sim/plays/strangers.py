"""Plays with strangers, who know the secret of the links because they can read the job's prefix (`registry`)."""

from __future__ import annotations

from elastic.core.agent.links.inbound import CHECK_AFTER_S
from elastic.core.model import Generation
from tests.sim.accidents import cut_for
from tests.sim.calm import Calm
from tests.sim.nodes import KILL_S, Node, Stranger
from tests.sim.plays.meetings import members_of
from tests.sim.world import World

MADE_UP = "made-up-000001"
CLOCKS = 1.05
"""How much longer the time of a lease may be on the clock of a node."""
LOOK_S = 4.0
"""An agent hears of a link within half a second, and reads at most a few keys one after the other."""


def stranger_grants(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node is cut off, and strangers grant it a day: its workers end with its lease all the same.

    One stranger has a name of its own, the other that of a spare, which is registered and no member.
    """
    spare = world.start_node("h9", warm=True)

    def cut() -> None:
        world.strangers += [Stranger(MADE_UP, {node.name}), Stranger(spare.name, {node.name})]
        _cut_off(world, node, leases=1)

    world.after(1.0, cut)


def stranger_is_the_first(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A stranger that says that it is the first grants a day, once: the node runs on for the time of a lease."""
    world.strangers.append(Stranger(old.members[0].node, {node.name}, answers=1))
    _cut_off(world, node, leases=2)


def strangers_linked(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Strangers make links to every node. They are closed, and no link of a node of the job is.

    In every second seed the store is away at first, and the links stay until it is back.
    """
    members = members_of(world, old)
    strangers = [Stranger(f"{MADE_UP}{number}", {one.name for one in members}) for number in range(3)]
    links = sum(len(one.links) for one in strangers)
    away_s = 2 * CHECK_AFTER_S if world.seed % 2 else 0.0
    world.strangers += strangers

    def closed() -> None:
        left = sum(len(one.links) for one in strangers)
        if left:
            world.fail("links", f"{left} of {links} links of strangers are not closed")
        if world.counts["a node's link was closed"]:
            world.fail("links", "the link of a node of this job was closed")

    def back() -> None:
        if sum(len(one.links) for one in strangers) != links:
            world.fail("links", "a link was closed although the store did not say that its node is a stranger")

    if away_s:
        watch.expect_nothing(world)
        world.away_for(away_s, lambda: watch.store_is_back(world))
        world.after(away_s - 0.01, back)
    world.after(away_s + 2 * CHECK_AFTER_S + LOOK_S, closed)


def _cut_off(world: World, node: Node, leases: float) -> None:
    """Cut a node off from the store and from all others. Its workers must be gone after the time of so many leases."""
    world.counts["a stranger could give its word"] += 1
    limit_s = leases * world.spec.lease_ttl_s * CLOCKS + KILL_S
    cut_for(world, node, limit_s + 1.0)

    def look() -> None:
        if node.workers is not None:
            world.fail("8", f"{node.name} has workers {limit_s:.1f} s after it was cut off: a stranger prolongs that")

    world.after(limit_s, look)
