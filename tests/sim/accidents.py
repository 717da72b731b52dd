"""What can be done to a job, a piece of a fault each."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from elastic.core.agent.events import ProcessProvenDead
from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.model import Generation, OutcomeKind
from elastic.core.transactions import Transaction
from tests.sim.nodes import KEYS, UNSTARTABLE, Node, Observer
from tests.sim.world import World

EVENTS_MIN = 200
"""A run has at least so many events, unless a crash loop uses up the restarts at once."""
STORES_MAX = 4
"""The store is not replaced more often in one run."""


def bad_for(world: World, node: Node, seconds: float) -> None:
    """From now on, and for so long, workers fail on this host a moment after each start."""
    world.log(f"{node.host} is broken for {seconds:.0f} s")
    world.job.bad_until[node.host] = world.now + seconds
    if node.workers is not None:
        world.end_worker(node, node.workers, 1)


def take_away(world: World, rng: random.Random, name: str) -> None:
    """Delete the key of a member, or write something there that nobody can read."""
    key = KEYS.member(name)
    found = world.store.list(KeyRange.key(key)).entries
    if found:
        junk = Put(key, b"\xff{", rng.choice([0, found[0].lease]))
        world.store.txn((), (Delete(KeyRange.key(key)),) if rng.random() < 0.5 else (junk,))
        world.deliver()


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


class Overtaken(Observer):
    """Lets one transaction linger on its way, while something happens that it does not know of."""

    def __init__(self, world: World, kind: str, meanwhile: Callable[[Node], None], seconds: float) -> None:
        self.kind = kind
        self.meanwhile = meanwhile
        self.seconds = seconds
        world.observe(self)

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """It is sent, and something else arrives before it."""
        if not self.kind or transaction.kind != self.kind or not node.alive:
            return 0.0
        world.counts[f"fault overtaken {self.kind}"] += 1
        self.kind = ""
        world.after(0.001, lambda: self.meanwhile(node))
        return self.seconds


class DoneAndGone(Observer):
    """Kills the next node that has recorded that its workers ended well; its death is shown before its word is."""

    def __init__(self, world: World) -> None:
        self.armed = True
        world.observe(self)

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """Its outcome is in the store."""
        outcome = transaction.outcome
        if self.armed and outcome is not None and outcome[1].ended is OutcomeKind.OK:
            self.armed = False
            world.after(0.0, lambda: self._dies(world, node))

    @staticmethod
    def _dies(world: World, node: Node) -> None:
        created = node.core.facts.registration.create_revision
        world.kill_agent(node)
        for other in alive(world) if created else ():
            world.feed(other, ProcessProvenDead(node.name, created, node.host))


class CrashLoop(Observer):
    """A script fails a moment after each start, or its nursery dies then, so many times."""

    def __init__(self, world: World, times: int, code: int) -> None:
        self.left = times
        self.code = code
        self._g = 0
        world.observe(self)

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """The first that starts in a generation is the one that fails."""
        workers = node.workers
        if self.left <= 0 or generation.g == self._g or workers is None:
            return
        self.left, self._g = self.left - 1, generation.g
        delay = world.random.uniform(0.05, 0.6)
        if self.code:
            world.after(delay, lambda: world.end_worker(node, workers, self.code))
        else:
            world.after(delay, lambda: world.kill_nursery(node) if node.workers is workers and node.alive else None)


class CannotStart(Observer):
    """A script ends at its first start, on each node after another delay; with some seeds one of them fails instead."""

    def __init__(self, world: World) -> None:
        self._failures = [1] if world.seed % 3 == 0 else []
        world.observe(self)

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """What starts in the first generation ends at once."""
        workers = node.workers
        if generation.before is not None or workers is None:
            return
        code = self._failures.pop() if self._failures else UNSTARTABLE
        world.after(world.random.uniform(0.001, 0.02), lambda: world.end_worker(node, workers, code))


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


def apart_for(world: World, node: Node, seconds: float) -> None:
    """A machine does not reach the other machines for so long, and reaches the store."""
    node.apart, node.silent_at = True, world.now
    world.log(f"{node.name}: cut from the other machines")
    world.split = True
    for one in world.nodes.values():
        world.watch_split(one)

    def back() -> None:
        node.apart, node.silent_at = False, 1e9
        world.log(f"{node.name}: reaches the other machines again")

    world.after(seconds, back)


def deaf_for(world: World, node: Node, others: Sequence[Node], seconds: float) -> None:
    """What these others send does not arrive at a node for so long; what it sends arrives there, and at the store."""
    node.deaf_to.update(one.name for one in others)
    node.silent_at = world.now
    world.log(f"{node.name}: hears nothing from {sorted(node.deaf_to)}")
    world.split = True
    for one in world.nodes.values():
        world.watch_split(one)

    def back() -> None:
        node.deaf_to.clear()
        node.silent_at = 1e9
        world.log(f"{node.name}: hears the others again")

    world.after(seconds, back)


def pairs_apart(world: World, node: Node, others: Sequence[Node]) -> None:
    """A machine does not reach these others, nor they it, until all is healed."""
    node.apart_from.update(one.name for one in others)
    world.log(f"{node.name}: cut from {sorted(node.apart_from)}")
    world.split = True
    for one in world.nodes.values():
        world.watch_split(one)


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
