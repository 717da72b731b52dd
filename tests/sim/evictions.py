"""Who may be evicted for its silence, looked at on what really was so: who could be reached, from where, and when."""

from __future__ import annotations

from elastic.core.agent.actions import NoteSilence, SilenceStep
from elastic.core.agent.links.silence import HEARTBEAT_S, TRIAL_MIN_S
from elastic.core.kv import Delete
from elastic.core.model import Generation
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.transactions import Transaction
from tests.sim.checks import Promises
from tests.sim.nodes import KEYS, KILL_S, Node, Observer
from tests.sim.world import World

TRIED_S = 6.0
"""A trial is not older than this when its node is evicted: a transaction and a refresh of the lease come first."""
FLAPS_S = 1.0
"""A way that was closed so lately, and is open and closed in turn, counts as closed."""
TICKS = 2.5
"""Intervals in which a node may have been reached before its silence is dated, or after the trial that confirmed it."""
TRUSTED_AGAIN_S = 3590.0
"""For so long a host that was evicted is not evicted again."""


def evicted_node(transaction: Transaction) -> str:
    """The node that a transaction evicts."""
    (operation,) = transaction.then
    assert isinstance(operation, Delete)
    return operation.range.start.removeprefix(KEYS.members)


class Evictions(Observer):
    """Looks at each eviction when it is sent and when it is carried out, and at who starts on an evicted host."""

    def __init__(self) -> None:
        self._promises = Promises()
        self._named: dict[tuple[int, str], float] = {}
        """When a generation first named an evicted host, by store."""
        self._evicted: dict[tuple[int, str], tuple[Node, float]] = {}
        """By store and host: the node that was evicted last, and when. Another store knows of none."""
        self._leader = ("", 0.0)
        """Who leads, and since when."""

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """The leader has decided it on what it knows now."""
        if transaction.kind == "evict":
            self._decided(world, node, world.nodes[evicted_node(transaction)])
        return 0.0

    def _decided(self, world: World, leader: Node, silent: Node) -> None:
        timeout_s, now = world.spec.silence_timeout_s, world.now
        if not timeout_s:
            world.fail("silence", f"{silent.name} is evicted, and no silence counts in this job")
        tick_s = min(HEARTBEAT_S, timeout_s / 4)
        way = (leader.name, silent.name)
        closed_at, unreached_s = world.closed_since.get(way), now - world.unreached_at.get(way, -1e9)
        if frozenset(way) in world.slow_links:  # It opens for moments, in which nothing may be said.
            closed_at = now - timeout_s if unreached_s < FLAPS_S else closed_at
        elif closed_at is None and unreached_s < TICKS * tick_s:  # It opened just now: the next heartbeat shows that.
            closed_at = now - timeout_s
        if closed_at is None or now - closed_at < timeout_s / 1.05 - TICKS * tick_s:
            world.fail("silence", f"{leader.name} evicts {silent.name}, which it could reach: closed since {closed_at}")
        view = leader.core.facts.view
        others = [one for one in view.members if one not in (leader.name, silent.name)]
        gone = [one for one in others if not world.nodes[one].alive or world.nodes[one].exit_code is not None]
        unreached = [one for one in others if now - world.unreached_at.get((one, silent.name), -1e9) < TRIED_S]
        if others and len(gone) < len(others) and not unreached:
            world.fail("silence", f"{leader.name} evicts {silent.name}, which {', '.join(others)} could reach")
        generation = leader.core.facts.generation
        assert generation is not None
        quiet = [place.node for place in generation.members if self._quiet(world, leader, place.node, timeout_s)]
        if len(quiet) > 1 and 3 * len(quiet) > len(generation.members):
            of = f"{len(quiet)} of {len(generation.members)}"
            world.fail("silence", f"{leader.name} evicts {silent.name}, and {of} are silent: {quiet}")
        named_at = self._named.get((world.store_number, silent.host))
        if named_at is not None and now < named_at + TRUSTED_AGAIN_S:
            world.fail("silence", f"{silent.name} is evicted, and its host was evicted {now - named_at:.0f} s ago")

    @staticmethod
    def _quiet(world: World, leader: Node, name: str, timeout_s: float) -> bool:
        """Tell whether a member was not reached by the leader for so long that it was silent when the trial ended."""
        closed_at = world.closed_since.get((leader.name, name))
        return closed_at is not None and world.now - closed_at > 1.05 * (timeout_s + 2 * TRIAL_MIN_S) + 1.0

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """It is carried out: by the leader, for the registration that was silent, and a survivor remains."""
        view = self._promises.view(world)
        if transaction.kind == "lead":
            self._took_the_lead(world, node)
        if view.leader is not None and view.leader.value.node != self._leader[0]:
            self._leader = view.leader.value.node, world.now
        if transaction.kind == "form" and view.generation is not None:
            for one in view.generation.value.evicted:
                self._named.setdefault((world.store_number, one.host), world.now)
        if transaction.kind != "evict":
            return
        silent = world.nodes[evicted_node(transaction)]
        self._evicted[world.store_number, silent.host] = silent, world.now
        if view.leader is None or view.leader.value.node != node.name:
            world.fail("silence", f"{node.name} evicts {silent.name}, and does not lead")
        known = node.sent_view.members.get(silent.name) if node.sent_view is not None else None
        created = silent.core.facts.registration.create_revision
        if known is not None and silent.hears and created > known.create_revision:
            world.fail("silence", f"{node.name} evicts {silent.name}, which has registered again")
        generation = view.generation.value if view.generation is not None else None
        before = generation.before if generation is not None else None
        gate = generation is not None and (view.go is None or view.go.value.g != generation.g)
        names = [place.node for place in generation.members] if generation is not None else []
        running = [name for name in names if not gate or before is None or name in before.nodes]
        if not any(name in view.members and name != silent.name for name in running):
            world.fail("silence", f"{silent.name} is evicted, and nobody of its world remains")

    def _took_the_lead(self, world: World, node: Node) -> None:
        """From a living leader only a member takes it that could hear this one since it leads."""
        known = node.sent_view.leader if node.sent_view is not None else None
        if known is None or known.value.node in (node.name, "") or not world.heartbeats_on:
            return
        name, led_at = self._leader
        silent = world.nodes[known.value.node]
        closed_at = world.closed_since.get((node.name, silent.name))
        if silent.name != name or not silent.alive or silent.exit_code is not None or closed_at is None:
            return
        memory = node.core.facts.memory
        if name in memory.dead or (name, known.value.created or known.create_revision) in memory.gone:
            return
        if closed_at < led_at:
            world.fail("silence", f"{node.name} takes the lead of {name}, which it has not reached since {closed_at}")
        generation = node.core.facts.generation
        if generation is None or generation.index(node.name) is None:
            world.fail("silence", f"{node.name} takes the lead of {name}, and is in no generation with it")

    def after_note(self, world: World, node: Node, note: NoteSilence) -> None:
        """An agent that was held up itself suspects nobody for what it has not heard meanwhile."""
        most_s = 0.9 * world.spec.silence_timeout_s
        held_up = world.now < node.thawed_at + most_s
        open_until = world.closed_since.get((node.name, note.node), world.now)
        if note.step is SilenceStep.SUSPECTED and held_up and world.now < open_until + most_s:
            world.fail("silence", f"{node.name} was held up until {node.thawed_at:.3f}, and suspects {note.node}")

    def after_revoke(self, world: World, node: Node, lease: int) -> None:
        """A leader ends the lease of the dead, and of who has been evicted, and of nobody else."""
        memory = node.core.facts.memory
        for name, stored in self._promises.view(world).members.items():
            proven = name in memory.dead or (name, stored.create_revision) in memory.gone
            if stored.lease == lease and not proven:
                world.fail("silence", f"{node.name} ends the lease of {name}, which is registered")

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """Workers of an evicted node are gone before those of another node start on its host."""
        other, at = self._evicted.get((world.store_number, node.host), (node, 0.0))
        waits_s = world.spec.lease_ttl_s * (1 + CLOCK_ERROR) - KILL_S
        if other is node:
            self._evicted.pop((world.store_number, node.host), None)  # What it had before the eviction is gone.
        joined = generation.before is None or node.name not in generation.before.nodes
        if other is not node and other.alive and other.workers is not None and joined and world.now < at + waits_s:
            world.fail("8", f"{node.name} starts on {node.host}, where {other.name} was evicted and has workers")
