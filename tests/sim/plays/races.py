"""Plays in which a transaction lingers on its way, and what it was based on is no longer so (`registry`)."""

from __future__ import annotations

from elastic.core.agent.events import SessionLost
from elastic.core.agent.leaving import DRAIN_PATIENCE_S
from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.model import Generation
from elastic.core.ps.model import ClusterSpec
from elastic.core.ps.task_placement import has_servers, has_workers
from elastic.core.transactions import Transaction
from elastic.core.view import encode
from tests.sim.accidents import Overtaken, empty, take_away
from tests.sim.calm import Calm
from tests.sim.nodes import KEYS, Node, Observer
from tests.sim.plays.meetings import comes, members_of
from tests.sim.world import World


class Lingers(Observer):
    """Lets the next transaction of a kind arrive at a moment; `host`: of a node there."""

    def __init__(self, world: World, kind: str, at: float, *, host: str = "") -> None:
        self.kind, self.at, self.host = kind, at, host
        world.observe(self)

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """It is sent."""
        if transaction.kind != self.kind or (self.host and node.host != self.host):
            return 0.0
        self.kind = ""
        world.log(f"{transaction.kind} of {node.name} lingers")
        world.counts["fault overtaken, by the book"] += 1
        return max(self.at - world.now, 0.0)


def _away(world: World, node: Node) -> None:
    """Its lease is revoked, and it does not reach the store for now."""
    node.astray = True
    world.log(f"{node.name}: its lease is revoked, and it does not reach the store")
    if node.lease is not None:
        world.store.revoke(node.lease)
        world.deliver()


def _back(world: World, node: Node) -> None:
    node.astray = False
    world.log(f"{node.name}: reaches the store again")
    world.relist(node)


def back_before_the_go(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member that was lost registers again while the go of those that go on without it is on its way.

    It has seen that its key is gone, and its watch does not tell what comes after that.
    """
    if node.lease is None or node.workers is None:
        return
    lease, node.workers.hangs = node.lease, True
    Lingers(world, "register", world.now + 2.5, host=node.host)
    Lingers(world, "go", world.now + 2.5 + world.random.uniform(0.01, 0.1))
    world.store.revoke(lease)
    world.deliver()
    world.feed(node, SessionLost(lease, "somebody has revoked it"))

    def deaf() -> None:
        node.deaf = True

    world.after(0.1, deaf)


def back_before_it_counts_as_lost(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member registers again while the generation without it is on its way."""
    _away(world, node)
    seconds = world.random.uniform(0.02, 0.4)
    Overtaken(world, "form", lambda _: _back(world, node), seconds)
    world.after(20.0, lambda: _back(world, node))


def scaled_meanwhile(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A script fails, and while the next generation, or its go, is on its way an operator wants fewer or more nodes."""
    kind = ("form", "go")[world.seed % 2]
    few = len(old.members) - 1

    def scaled(_: Node) -> None:
        world.scale_to(few if kind == "form" else len(old.members) + 2, low=0 if kind == "form" else few + 3)

    Overtaken(world, kind, scaled, 0.3)
    if node.workers is not None:
        world.end_worker(node, node.workers, 1)


def done_meanwhile(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Fewer nodes are wanted, and while that is on its way workers end well."""

    def done(_: Node) -> None:
        world.job.done_s = world.job.work_s
        for at, one in enumerate(members_of(world, old)):
            workers, delay = one.workers, 0.002 if at % 2 else 1.5
            if workers is not None:
                world.after(delay, lambda one=one, workers=workers: world.end_worker(one, workers, 0))  # type: ignore[misc]

    Overtaken(world, "form", done, 0.4)
    world.scale_to(len(old.members) - 1)


def settings_meanwhile(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node comes, and while its registration is on its way an operator changes the job's settings."""
    Overtaken(world, "register", lambda _: world.scale_to(len(old.members) + 1), 0.3)
    world.start_node("late", warm=True)


def two_come_to_a_dead_job(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Every node is gone; one comes with other settings, and before it is registered one with the same comes."""
    for one in members_of(world, old):
        world.kill_agent(one)
    wait_s = 2 * world.spec.lease_ttl_s + 1.0

    def come() -> None:
        Lingers(world, "register", world.now + 1.0, host="wide")
        world.start_node("wide", slots=world.spec.slots + 1, warm=True)
        world.after(0.3, lambda: comes(world, "same"))

    world.after(wait_s, come)


class _GivenUp(Observer):
    """The first generation lingers for longer than its sender waits, and the store is replaced meanwhile."""

    def __init__(self, world: World) -> None:
        self.armed = True
        world.observe(self)

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """It is sent."""
        if self.armed and transaction.kind == "form":
            self.armed = False
            world.counts["play into_another_store"] += 1
            world.late_answers = 1.0

            def replaced() -> None:
                world.late_answers = 0.0
                empty(world, 0.05)

            world.after(0.0, replaced)
        return 0.0


def into_another_store(world: World) -> None:
    """The first generation is on its way while the store is replaced, and arrives at one that looks the same."""
    _GivenUp(world)


def seats_meanwhile(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node comes to a roster that has room, and while it gets its seats the workers of another end well."""
    world.scale_to(world.spec.np.high + 1)
    world.start_node("late", warm=True)

    def done(_: Node) -> None:
        for one in members_of(world, old):
            place = ClusterSpec.of(old).members[old.index(one.name) or 0]
            if has_workers(place) and not has_servers(place) and one.workers is not None:
                world.end_worker(one, one.workers, 0)
                return

    Overtaken(world, "form", done, 0.3)


def proposer_revoked_meanwhile(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A script fails, and while the next generation is on its way the lease of its proposer is revoked."""

    def revoked(one: Node) -> None:
        if one.lease is not None:
            world.store.revoke(one.lease)

    Overtaken(world, "form", revoked, 0.05)
    if node.workers is not None:
        world.end_worker(node, node.workers, 1)


def two_proposers(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """The first does not reach the store while its proposal is on its way, and the next proposes in its place."""
    ttl_s, first = world.spec.lease_ttl_s, world.nodes[old.members[0].node]
    for one in members_of(world, old):
        if one.workers is not None:
            one.workers.hangs = True

    def away(_: Node) -> None:
        world.astray_for(first, 2 * ttl_s)

    Overtaken(world, "form", away, world.random.uniform(0.7, 0.98) * ttl_s)
    last = members_of(world, old)[-1]
    if last.workers is not None:
        world.end_worker(last, last.workers, 1)


def lost_and_done(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A member that is away has ended well, and says so while a generation is on its way for which it is lost."""
    if node.workers is None:
        return
    _away(world, node)
    world.job.done_s = world.job.work_s
    for one in members_of(world, old):
        if one.workers is not None:
            delay = 0.0 if one is node else 5.0
            world.after(delay, lambda one=one, workers=one.workers: world.end_worker(one, workers, 0))  # type: ignore[misc]
    world.after(0.001, lambda: world.drain(node))
    Overtaken(world, "form", lambda _: _back(world, node), 0.4)
    world.after(20.0, lambda: _back(world, node))


class Twin(Observer):
    """Another node of the same id registers while this one's transaction lingers, which must not come through."""

    def __init__(self, world: World, kind: str) -> None:
        self.kind = kind
        self.lingering: Transaction | None = None
        world.observe(self)

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """It is sent, and lingers."""
        if transaction.kind != self.kind or self.lingering is not None:
            return 0.0
        self.lingering = transaction
        world.after(0.1, lambda: self._registers(world, node))
        return 0.3

    def _registers(self, world: World, node: Node) -> None:
        key, lease = KEYS.member(node.name), world.store.grant(2.0, world.now)
        world.log(f"another {node.name} registers")
        world.store.txn((), (Delete(KeyRange.key(key)),))
        world.store.txn((), (Put(key, encode(node.core.facts.me.member), lease.id),))
        world.counts["fault a twin registers"] += 1
        world.deliver()

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """Something came through."""
        if transaction is self.lingering:
            world.fail("twins", f"the {self.kind} of {node.name} changed the key of another node of the same id")


def twins(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Two nodes have the same id: the second to come waits, and neither changes what the other has written."""
    kind = ("register", "say", "leave")[world.seed % 3]
    Twin(world, kind)
    if kind == "register":
        comes(world, "twin")
    else:
        world.drain(node)


def late_to_a_roster(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Workers of a roster have ended well, and a node comes for which np has room: it is not taken in."""
    for one in members_of(world, old):
        place = ClusterSpec.of(old).members[old.index(one.name) or 0]
        if has_workers(place) and not has_servers(place) and one.workers is not None:
            world.end_worker(one, one.workers, 0)
            break
    world.after(0.5, lambda: world.scale_to(world.spec.np.high + 1))
    world.after(0.6, lambda: comes(world, "late"))


def deaf_and_taken_away(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """Somebody deletes or damages the key of a node whose watch is deaf; another one is there to take its seats."""
    node.deaf = True
    world.after(0.5, lambda: comes(world, "another"))
    world.after(1.0, lambda: take_away(world, world.random, node.name))


def drain_of_a_roster(world: World, watch: Calm, node: Node, old: Generation) -> None:
    """A node of a roster is told to leave: it is asked for its seats before it goes by itself."""
    world.drain(node)

    def look() -> None:
        view = watch.view(world)
        places = ClusterSpec.of(view.generation.value).members if view.generation is not None else ()
        asked = all(place.leaving for place in places if place.node == node.name)
        if not asked and node.workers is not None and not node.workers.stopping and not view.outcomes:
            world.fail("5", f"{node.name} drains, and the roster takes no notice")

    world.after(DRAIN_PATIENCE_S - 2.0, look)
