"""The leader's memory between two decisions, and how it is updated from the view (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from elastic.core.membership.decision import DecisionPolicy
from elastic.core.membership.evictions import Eviction, note_evicted, note_returned
from elastic.core.model import ChangeReason, Member, MemberState, OutcomeKind
from elastic.core.quarantine import quarantine_deadlines
from elastic.core.view import StoredDocument, StoreView

LINK_PATIENCE_S = 3.0
"""A registered node that the leader cannot link to is admitted after this time; only its lease shows its failure."""
GONE_MAX = 64
"""Newest proofs of death that are kept after their keys are gone; a wrong proof that is dropped may be repeated."""


class DecisionMemory(Struct, frozen=True):
    """The state that is kept from call to call. All times are in seconds of this agent's monotonic clock."""

    # Links
    linked: frozenset[str] = frozenset()
    """Nodes whose link is up and that are not silent; while links are doubted, only nodes that answer over theirs."""
    heard_since: Mapping[str, float] = field(default_factory=dict)
    """Since when each linked node has been linked without a break."""
    silent: frozenset[str] = frozenset()
    """Nodes that have sent nothing for longer than the silence timeout."""
    evictions: tuple[Eviction, ...] = ()
    """Nodes that were evicted lately."""
    unheard: frozenset[str] = frozenset()
    """Nodes that were linked earlier and are not linked now."""
    gone: frozenset[tuple[str, int]] = frozenset()
    """Members, with their create revision, whose process is dead according to a link. This can be wrong."""
    dead: frozenset[str] = frozenset()
    """Nodes whose process was seen dead on this host. This is never wrong."""
    distrusted: frozenset[str] = frozenset()
    """Hosts for which a link's proof of death was wrong: further ones are ignored."""
    # Since when
    absent_since: Mapping[str, float] = field(default_factory=dict)
    """Since when each member of the newest generation, or of the one before it, has had no key."""
    seen_since: Mapping[str, float] = field(default_factory=dict)
    """Since when each joining node has been registered without a link."""
    ready_since: Mapping[str, float] = field(default_factory=dict)
    """Since when each node outside the newest generation can be admitted."""
    draining_since: Mapping[str, float] = field(default_factory=dict)
    """Since when each draining member has announced its drain."""
    ended_since: Mapping[str, float] = field(default_factory=dict)
    """Since when the workers of each member have been known to be gone."""
    failed_since: Mapping[str, float] = field(default_factory=dict)
    """Since when each member has been known to have recorded a failure."""
    gate_since: tuple[int, float] | None = None
    """The generation whose gate only a back-off keeps closed, and since when."""
    scaled_up_at: float | None = None
    """When the job last scaled up."""
    back_at: float | None = None
    """When this node registered, if that was after the newest generation."""
    quarantine_deadlines: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Until when hosts are quarantined, by host and by the generation whose failure caused it."""
    # What was there before
    generation_seen: int = 0
    """The newest generation that `scaled_up_at` takes into account."""
    listening: int = 0
    """The newest generation whose workers on this node accept a planned stop."""
    since_revision: int = 0
    """The revision of the view with which this agent first decided."""
    own_created: int = 0
    """The create revision of this node's key."""
    size_before: int = 0
    """Members of the newest generation in the previous store, after an empty store has replaced it."""


def remember(view: StoreView, memory: DecisionMemory, node: str, now: float) -> DecisionMemory:
    """Note when the job last scaled up, until when hosts are quarantined, and when this agent's `node` registered.

    Every agent does this, because any of them may become the leader.
    """
    own = view.members.get(node)
    created = own.create_revision if own is not None else memory.own_created
    if view.generation is None:
        return replace(memory, own_created=created)
    generation = view.generation.value
    if created != memory.own_created:
        after = created > view.generation.mod_revision
        memory = replace(memory, own_created=created, back_at=now if after else None)
    deadlines = quarantine_deadlines(view, memory.quarantine_deadlines, now)
    new = generation.g > memory.generation_seen
    memory = replace(memory, evictions=note_evicted(memory.evictions, generation, now, new=new))
    if generation.g == memory.generation_seen and deadlines == memory.quarantine_deadlines:
        return memory
    scaled_up = new and generation.why is ChangeReason.SCALE_UP
    return replace(
        memory,
        scaled_up_at=now if scaled_up else memory.scaled_up_at,
        generation_seen=generation.g,
        quarantine_deadlines=deadlines,
    )


def observe(view: StoreView, memory: DecisionMemory, policy: DecisionPolicy, now: float) -> DecisionMemory:
    """Update the memory: since when each node has been ready, draining, absent, and so on."""
    run = view.spec.value.run if view.spec is not None else 0
    generation = view.generation.value if view.generation is not None and view.generation.value.run == run else None
    inside = {member.node for member in generation.members} if generation else set()
    before = set(generation.before.nodes) if generation and generation.before else set()
    members, g = view.members, generation.g if generation else 0
    ends = {node: stored.value for (of, node), stored in view.outcomes.items() if of == g}
    memory = replace(memory, since_revision=memory.since_revision or view.revision)
    ready = _in_state(members, MemberState.READY, inside)
    seen_since = _unlinked_since(view, memory, policy, ready, now)
    remembered = remember(view, memory, policy.node, now)
    return replace(
        remembered,
        seen_since=seen_since,
        gone=_still_gone(members, memory),
        evictions=note_returned(remembered.evictions, members),
        unheard=memory.unheard & (inside | before),
        absent_since=_since(memory.absent_since, sorted((inside | before) - members.keys()), now),
        ready_since=_since(memory.ready_since, [node for node in ready if node not in seen_since], now),
        draining_since=_since(memory.draining_since, _in_state(members, MemberState.DRAINING), now),
        failed_since=_since(
            memory.failed_since, [node for node, end in ends.items() if end.ended is OutcomeKind.FAILED], now
        ),
        ended_since=_since(memory.ended_since, [node for node, end in ends.items() if end.over], now),
    )


def _since(known: Mapping[str, float], nodes: Iterable[str], now: float) -> Mapping[str, float]:
    """Since when each of these nodes has been in its state: a node that was in it before keeps its time."""
    return {node: known.get(node, now) for node in nodes}


def _in_state(
    members: Mapping[str, StoredDocument[Member]], state: MemberState, without: Collection[str] = ()
) -> list[str]:
    return [node for node, stored in members.items() if stored.value.state is state and node not in without]


def _unlinked_since(
    view: StoreView, memory: DecisionMemory, policy: DecisionPolicy, ready: Iterable[str], now: float
) -> Mapping[str, float]:
    """Since when the leader has waited for a link to each joining node, for at most `LINK_PATIENCE_S`."""
    arriving = (node for node in ready if node not in memory.ready_since)
    unlinked = (node for node in arriving if not _linked(view, memory, policy, node, view.members[node]))
    waits = _since(memory.seen_since, unlinked, now)
    return {node: since for node, since in waits.items() if now < since + LINK_PATIENCE_S}


def _still_gone(members: Mapping[str, StoredDocument[Member]], memory: DecisionMemory) -> frozenset[tuple[str, int]]:
    """The proofs of death that have not been refuted.

    They are kept after the key is gone: a node that registers again after its proof shows that the proof was wrong.
    """
    if not memory.gone:
        return memory.gone
    kept = {key for key in memory.gone if key[0] in members and members[key[0]].create_revision == key[1]}
    absent = sorted((created, node) for node, created in memory.gone if node not in members)
    return frozenset(kept.union((node, created) for created, node in absent[-GONE_MAX:]))


def _linked(
    view: StoreView, memory: DecisionMemory, policy: DecisionPolicy, node: str, stored: StoredDocument[Member]
) -> bool:
    """Return whether a node outside the generation has arrived: its agent is or was linked, or no link would count.

    A node that registered before the newest generation was made, or before this agent became the leader of a running
    job, has waited long enough: it is needed at once, to replace the lost leader.
    """
    known = max(view.generation.mod_revision - 1, memory.since_revision) if view.generation is not None else 0
    before = stored.create_revision <= known
    if not stored.value.link or stored.value.host in memory.distrusted:
        return True
    return node in memory.linked or node == policy.node or before
