"""Run deadlines that other members extend while the store does not answer a node, and by how long (pure)."""

from __future__ import annotations

from msgspec import Struct

from elastic.core.agent.actions import AskVouch
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import OutcomeKind

ASKS_PER_TTL = 4
"""While something is wrong, questions are as frequent as refreshes of the lease."""
SILENT_REFRESHES = 1.6
"""So many intervals between two refreshes without a good one: the store does not answer this node."""


class VouchAsked(Struct, frozen=True):
    """A node that this one follows, or that follows it, asks for its word: it does not reach the store now."""

    node: str


class Vouched(Struct, frozen=True):
    """A node grants this one the right to run generation g for some seconds from `asked_at`, a time of our clock."""

    node: str
    g: int
    asked_at: float
    seconds: float


def on_vouch_asked(agent: AgentState, event: VouchAsked) -> None:
    """Note that a node does not reach the store, and since when; those that have not said so lately do again."""
    half_s = agent.workers.run_deadline.ttl_s / 2
    recent = {node: times for node, times in agent.links.yielding.items() if agent.now <= times[1] + half_s}
    first, _ = recent.get(event.node, (agent.now, agent.now))
    agent.links.yielding = {**recent, event.node: (first, agent.now)}


def on_vouched(agent: AgentState, event: Vouched) -> None:
    """Run on for as long as a member grants, and for no longer than a lease would."""
    deadline = agent.workers.run_deadline
    if event.g == agent.workers.g and not agent.workers.gone and _may_grant(agent, event.node, event.g):
        agent.workers.run_deadline = deadline.vouched(event.asked_at + min(event.seconds, deadline.ttl_s))


def may_hold(agent: AgentState) -> bool:
    """The first of a generation holds its right to run by its links once its lease has missed a refresh.

    Tasks of parameter-server jobs are given anew as soon as a lease has ended, so that none runs longer than that.
    """
    generation = agent.generation
    runs = generation is not None and generation.g == agent.workers.g and not agent.workers.tasks
    return runs and is_first(agent) and agent.now >= silent_at(agent)


def hold(agent: AgentState) -> None:
    """Keep the right to run while every other member is heard, whatever the store does."""
    generation, deadline = agent.generation, agent.workers.run_deadline
    assert generation is not None
    others = {member.node for member in generation.members if member.node != agent.me.node}
    heard_at = agent.links.heard_at if others else agent.now  # A node that is alone asks none.
    if agent.now <= heard_at + 2 * interval_s(agent) and others <= agent.memory.linked:
        agent.workers.run_deadline = deadline.vouched(heard_at + deadline.ttl_s)


def grantable_seconds(agent: AgentState, node: str, g: int, now: float) -> float:
    """How many seconds from `now` this agent, asked over the link, grants `node` to run generation g; 0.0 is no.

    The first of the generation grants, and whoever proposes while that one does not reach the store.
    """
    generation = agent.generation
    if generation is None or generation.g != g or agent.workers.g != g or not in_world(agent) or agent.workers.tasks:
        return 0.0
    index = generation.index(agent.me.node)
    if generation.index(node) is None or index is None or not (index == 0 or agent.succession.leads):
        return 0.0
    return max(0.0, min(agent.workers.run_deadline.ttl_s, agent.workers.run_deadline.until() - now))


def _may_grant(agent: AgentState, node: str, g: int) -> bool:
    """Tell whether a grant by `node` to run generation g counts here: only members of that generation give one.

    The first of them gives it, or the leader in its place. Which of the others leads is more than this node can know
    while it does not reach the store; each of them knows it of itself (`grantable_seconds`).
    """
    generation = agent.generation
    if generation is None or generation.g != g:
        return False
    return node != agent.me.node and generation.index(node) is not None


def may_replace(agent: AgentState, node: str) -> bool:
    """Tell whether this agent has to know that a node asks for its word: it may propose in the place of that node.

    Only the first of the generation is replaced so. In an outage all members ask that one, four times in a lease's
    time, and it need not know.
    """
    generation = agent.generation
    return generation is not None and generation.index(node) == 0


def should_take_over(agent: AgentState, node: str) -> bool:
    """Tell whether the first of the generation does not reach the store while this node does.

    It has said so twice or more in a row, a moment ago too, and a refresh came back that this node sent meanwhile: a
    store that answers now and then moves nobody.
    """
    first, last = agent.links.yielding.get(node, (float("inf"), float("-inf")))
    if agent.now >= last + 2 * interval_s(agent) or last < first + 0.9 * interval_s(agent):
        return False
    return may_replace(agent, node) and agent.workers.run_deadline.refreshed_at > first + 0.9 * interval_s(agent)


def nodes_without_store(agent: AgentState) -> frozenset[str]:
    """Nodes that asked for a vouch a moment ago: they do not reach the store."""
    return frozenset(
        node for node, (_, last) in agent.links.yielding.items() if agent.now < last + 2 * interval_s(agent)
    )


def in_world(agent: AgentState) -> bool:
    """Tell whether this node's workers run, or have all ended well: the others may need its word until theirs have."""
    wanted = agent.workers.outcome_wanted
    ended = wanted is not None and wanted[0] == agent.workers.g and wanted[1].ended is OutcomeKind.OK
    return agent.phase is Phase.RUNNING or (agent.phase is Phase.DONE and ended)


def interval_s(agent: AgentState) -> float:
    """Return the seconds between two refreshes of this node's lease."""
    return (agent.workers.run_deadline.ttl_s or agent.me.spec.lease_ttl_s) / ASKS_PER_TTL


def silent_at(agent: AgentState) -> float:
    """When this node's lease has missed a refresh."""
    return agent.workers.run_deadline.refreshed_at + SILENT_REFRESHES * interval_s(agent)


def store_is_silent(agent: AgentState) -> bool:
    """Tell whether this node's lease has missed a refresh."""
    return agent.now > silent_at(agent)


def is_first(agent: AgentState) -> bool:
    """Tell whether this node is the first of the newest generation, and of use to the others there."""
    return in_world(agent) and agent.generation is not None and agent.generation.index(agent.me.node) == 0


def needs_vouch(agent: AgentState) -> bool:
    """The workers run, the store is silent, and no vouch was asked for lately."""
    return _lacks_store(agent) and agent.now >= agent.links.vouch_asked_at + interval_s(agent)


def _lacks_store(agent: AgentState) -> bool:
    runs = agent.phase is Phase.RUNNING and not agent.workers.tasks
    return runs and (not agent.registration.registered or store_is_silent(agent))


def ask_vouch(agent: AgentState) -> None:
    """Ask whoever watches this node for a vouch."""
    agent.links.vouch_asked_at = agent.now
    agent.act(AskVouch(agent.workers.g))


def ask_vouch_at(agent: AgentState) -> float:
    """When a vouch is asked for next, and when it shows that the store is silent."""
    if _lacks_store(agent):
        return agent.links.vouch_asked_at + interval_s(agent)
    waits = (agent.phase is Phase.RUNNING or is_first(agent)) and not agent.workers.tasks
    return silent_at(agent) + 1e-3 if waits and not store_is_silent(agent) else float("inf")


def yielding_ends_at(agent: AgentState) -> float:
    """When the next of the nodes that did not reach the store counts as reaching it again."""
    return agent.first_of(last + 2 * interval_s(agent) for _, last in agent.links.yielding.values())
