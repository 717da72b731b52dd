"""Who may be evicted for its silence, looked at on what really was so: who could be reached, from where, and when."""

from __future__ import annotations

from elastic.core.agent.actions import NoteSilence, SilenceStep
from elastic.core.agent.links.silence import TRIAL_MIN_S, TRIAL_PART, interval_s
from elastic.core.kv import Delete
from elastic.core.model import Generation
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from launcher.peers.silence_detector import UNHEARD_INTERVALS
from tests.sim.checks import Promises
from tests.sim.heartbeats import Tried
from tests.sim.nodes import KEYS, KILL_S, NEVER, Node, Observer
from tests.sim.world import World

CLOCK = 1.03
"""Clocks run 2 % too fast or too slow."""
FRESH_S = 0.6
"""A trial that is older than the silence timeout is repeated after this time at the latest."""
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
        silent = self._living_leader(world, node, node.core.facts.view) if transaction.kind == "lead" else None
        if silent is not None:
            self._is_silent(world, node, silent, "takes the lead of")
        return 0.0

    def _decided(self, world: World, leader: Node, silent: Node) -> None:
        timeout_s, now = world.spec.silence_timeout_s, world.now
        if not timeout_s:
            world.fail("silence", f"{silent.name} is evicted, and no silence counts in this job")
        tried = self._is_silent(world, leader, silent, "evicts")
        generation = leader.core.facts.generation
        assert generation is not None
        names = [place.node for place in generation.members if place.node != leader.name]
        quiet = [name for name in names if name == silent.name or self._quiet(world, leader, name, tried)]
        if len(quiet) > 1 and 3 * len(quiet) > len(generation.members):
            of = f"{len(quiet)} of {len(generation.members)}"
            world.fail("silence", f"{leader.name} evicts {silent.name}, and {of} are silent: {quiet}")
        named_at = self._named.get((world.store_number, silent.host))
        if named_at is not None and now < named_at + TRUSTED_AGAIN_S:
            world.fail("silence", f"{silent.name} is evicted, and its host was evicted {now - named_at:.0f} s ago")

    @staticmethod
    def _is_silent(world: World, node: Node, silent: Node, does: str) -> Tried:
        """Nothing was heard from it for the silence timeout, and then neither this node reached it nor another one."""
        timeout_s, now = world.spec.silence_timeout_s, world.now
        since, tried = world.unheard_since(node, silent.name), world.tried.get((node.name, silent.name))
        least_s = (timeout_s + max(TRIAL_PART * timeout_s, TRIAL_MIN_S)) / CLOCK
        if not least_s <= now - since < NEVER:
            world.fail("silence", f"{node.name} {does} {silent.name}, which is silent since {since:.3f}")
        if tried is None or tried.at < since or now - tried.at > CLOCK * timeout_s + FRESH_S:
            at = f"{tried.at:.3f}" if tried is not None else "never"
            world.fail(
                "silence", f"{node.name} {does} {silent.name}, which was not tried in this silence, or long ago: {at}"
            )
        assert tried is not None
        if tried.reached:
            world.fail("silence", f"{node.name} {does} {silent.name}, which it reached at {tried.at:.3f}")
        view, generation = node.core.facts.view, node.core.facts.generation
        members = [place.node for place in generation.members] if generation is not None else []
        known = view.members if view.complete else members
        others = [world.nodes[one] for one in known if one not in (node.name, silent.name)]
        alive = [one.name for one in others if one.alive and one.exit_code is None]
        if alive and not tried.unreached_by & set(alive):
            world.fail("silence", f"{node.name} {does} {silent.name}, which {', '.join(alive)} could reach")
        return tried

    @staticmethod
    def _quiet(world: World, leader: Node, name: str, tried: Tried) -> bool:
        """Tell whether the leader could not reach a member at the trial, and had not heard it for some intervals."""
        since = world.unheard_since(leader, name)
        unheard_s = UNHEARD_INTERVALS * interval_s(world.spec.silence_timeout_s, 1) * CLOCK
        return name in tried.out_of_reach and tried.at - since > unheard_s

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

    def _living_leader(self, world: World, node: Node, view: StoreView | None) -> Node | None:
        """The leader that a node knows and may only replace for its silence: it lives, and no proof says otherwise."""
        known = view.leader if view is not None else None
        if known is None or known.value.node in (node.name, "") or not world.heartbeats_on:
            return None
        leader, memory = world.nodes[known.value.node], node.core.facts.memory
        if leader.name != self._leader[0] or not leader.alive or leader.exit_code is not None:
            return None
        created = known.value.created or known.create_revision
        return None if leader.name in memory.dead or (leader.name, created) in memory.gone else leader

    def _took_the_lead(self, world: World, node: Node) -> None:
        """From a living leader only a member takes it that could hear this one since it leads."""
        name, led_at = self._leader
        if self._living_leader(world, node, node.sent_view) is None:
            return
        if world.heard_at(node, name) < led_at:
            world.fail("silence", f"{node.name} takes the lead of {name}, which it has not heard since {led_at:.3f}")
        generation = node.core.facts.generation
        if generation is None or generation.index(node.name) is None:
            world.fail("silence", f"{node.name} takes the lead of {name}, and is in no generation with it")

    def after_note(self, world: World, node: Node, note: NoteSilence) -> None:
        """A node is suspected after the silence timeout; while an agent is held up itself, it hears nobody."""
        if note.step is not SilenceStep.SUSPECTED:
            return
        since = world.unheard_since(node, note.node)
        if not world.spec.silence_timeout_s / CLOCK <= world.now - since < NEVER:
            world.fail("silence", f"{node.name} suspects {note.node}, which is silent since {since:.3f}")

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
