"""Run deadlines that other members extend while the store does not answer a node, and by how long (pure)."""

from __future__ import annotations

from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import OutcomeKind

ASKS_PER_TTL = 4
"""While something is wrong, questions are as frequent as refreshes of the lease."""
SILENT_REFRESHES = 1.6
"""So many intervals between two refreshes without a good one: the store does not answer this node."""


def extend_while_linked(f: AgentState) -> None:
    """The first of a generation keeps its right to run while it hears every other member, whatever the store does."""
    generation = f.generation
    if not in_world(f) or generation is None or generation.g != f.workers.g or f.workers.tasks:
        return  # Seats are given anew as soon as a lease has ended, so that nobody runs longer than that.
    if generation.index(f.me.node) != 0 or f.now < silent_at(f):
        return
    others = {place.node for place in generation.members if place.node != f.me.node}
    heard_at = f.links.heard_at if others else f.now  # Who is alone has nobody to ask.
    if f.now <= heard_at + 2 * interval_s(f) and others <= f.memory.linked:
        f.workers.run_deadline = f.workers.run_deadline.vouched(heard_at + f.workers.run_deadline.ttl_s)


def grantable_seconds(f: AgentState, node: str, g: int, now: float) -> float:
    """How many seconds from `now` this agent, asked over the link, grants `node` to run generation g; 0.0 is no.

    The first of the generation grants, and whoever proposes while that one does not reach the store.
    """
    generation = f.generation
    if generation is None or generation.g != g or f.workers.g != g or not in_world(f) or f.workers.tasks:
        return 0.0
    index = generation.index(f.me.node)
    if generation.index(node) is None or index is None or not (index == 0 or f.succession.leads):
        return 0.0
    return max(0.0, min(f.workers.run_deadline.ttl_s, f.workers.run_deadline.until() - now))


def may_grant(f: AgentState, node: str, g: int) -> bool:
    """Tell whether a grant by `node` to run generation g counts here: only members of that generation give one.

    The first of them gives it, or the leader in its place. Which of the others leads is more than this node can know
    while it does not reach the store; each of them knows it of itself (`grantable_seconds`).
    """
    generation = f.generation
    if generation is None or generation.g != g:
        return False
    return node != f.me.node and generation.index(node) is not None


def may_replace(f: AgentState, node: str) -> bool:
    """Tell whether this agent has to know that a node asks for its word: it may propose in the place of that node.

    Only the first of the generation is replaced so. In an outage all members ask that one, four times in a lease's
    time, and it need not know.
    """
    generation = f.generation
    return generation is not None and generation.index(node) == 0


def should_take_over(f: AgentState, node: str) -> bool:
    """Tell whether the first of the generation does not reach the store while this node does.

    It has said so twice or more in a row, a moment ago too, and a refresh came back that this node sent meanwhile: a
    store that answers now and then moves nobody.
    """
    first, last = f.links.yielding.get(node, (float("inf"), float("-inf")))
    if f.now >= last + 2 * interval_s(f) or last < first + 0.9 * interval_s(f):
        return False
    return may_replace(f, node) and f.workers.run_deadline.refreshed_at > first + 0.9 * interval_s(f)


def nodes_without_store(f: AgentState) -> frozenset[str]:
    """Nodes that asked for a vouch a moment ago: they do not reach the store."""
    return frozenset(node for node, (_, last) in f.links.yielding.items() if f.now < last + 2 * interval_s(f))


def in_world(f: AgentState) -> bool:
    """Tell whether this node's workers run, or have all ended well: the others may need its word until theirs have."""
    wanted = f.workers.outcome_wanted
    ended = wanted is not None and wanted[0] == f.workers.g and wanted[1].ended is OutcomeKind.OK
    return f.phase is Phase.RUNNING or (f.phase is Phase.DONE and ended)


def interval_s(f: AgentState) -> float:
    """Return the seconds between two refreshes of this node's lease."""
    return (f.workers.run_deadline.ttl_s or f.me.spec.lease_ttl_s) / ASKS_PER_TTL


def silent_at(f: AgentState) -> float:
    """When this node's lease has missed a refresh."""
    return f.workers.run_deadline.refreshed_at + SILENT_REFRESHES * interval_s(f)
