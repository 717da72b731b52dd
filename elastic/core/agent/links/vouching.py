"""Vouching: other members extend a node's run deadline while the store does not answer it (pure)."""

from __future__ import annotations

from msgspec import Struct

from elastic.core.agent.actions import AskVouch
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import OutcomeKind

ASKS_PER_TTL = 4
"""Pings and requests for vouches in the TTL of a lease: as many as refreshes of the lease."""
SILENT_REFRESHES = 1.6
"""Refresh intervals without a successful refresh after which the store counts as silent."""


class Vouched(Struct, frozen=True):
    """A node lets this one run generation g for some `seconds` from `asked_at`, a time on this node's clock."""

    node: str
    g: int
    asked_at: float
    seconds: float


def on_vouched(agent: AgentState, event: Vouched) -> None:
    """Extend the run deadline by the time that a member grants, at most by the TTL of a lease."""
    deadline = agent.workers.run_deadline
    if event.g == agent.workers.g and not agent.workers.gone and _may_grant(agent, event.node, event.g):
        agent.workers.run_deadline = deadline.vouched(event.asked_at + min(event.seconds, deadline.ttl_s))


def may_hold(agent: AgentState) -> bool:
    """This node is the leader, and its lease has missed a refresh, so that its links may extend its run deadline.

    A parameter-server job assigns tasks again as soon as a lease has ended, so none of its nodes runs longer than that.
    """
    return vouches(agent) and agent.now >= silent_at(agent)


def hold(agent: AgentState) -> None:
    """Extend the leader's run deadline while it hears every other member, whatever the store does."""
    generation, deadline = agent.generation, agent.workers.run_deadline
    assert generation is not None
    others = {member.node for member in generation.members if member.node != agent.me.node}
    heard_at = agent.links.heard_at if others else agent.now  # A single node has no other to ping.
    if agent.now <= heard_at + 2 * interval_s(agent) and others <= agent.memory.linked:
        agent.workers.run_deadline = deadline.vouched(heard_at + deadline.ttl_s)


def grantable_seconds(agent: AgentState, node: str, g: int, now: float) -> float:
    """Seconds from `now` for which this agent lets `node`, which asks over its link, run generation g; 0.0: refused."""
    generation = agent.generation
    if generation is None or generation.g != g or generation.index(node) is None or not vouches(agent):
        return 0.0
    if node in agent.memory.silent or _is_evicted(agent, node):
        return 0.0
    return max(0.0, min(agent.workers.run_deadline.ttl_s, agent.workers.run_deadline.until() - now))


def _is_evicted(agent: AgentState, node: str) -> bool:
    """Return whether a node was evicted, and has not registered again."""
    away = node not in agent.view.members
    return away and any(one.node == node and not one.returned for one in agent.memory.evictions)


def _may_grant(agent: AgentState, node: str, g: int) -> bool:
    """Return whether a grant by `node` for generation g is valid: it is from a member of that generation or the leader.

    A node that cannot reach the store does not know which member leads by now; each member knows whether it leads
    itself (`grantable_seconds`).
    """
    generation, leader = agent.generation, agent.view.leader
    if generation is None or generation.g != g or node == agent.me.node:
        return False
    return generation.index(node) is not None or (leader is not None and leader.value.node == node)


def in_world(agent: AgentState) -> bool:
    """Return whether this node's workers run, or have all ended well: the others may still need its vouch then."""
    wanted = agent.workers.outcome_wanted
    ended = wanted is not None and wanted[0] == agent.workers.g and wanted[1].ended is OutcomeKind.OK
    return agent.phase is Phase.RUNNING or (agent.phase is Phase.DONE and ended)


def vouches(agent: AgentState) -> bool:
    """Return whether this node leads and the newest generation runs, with its workers or with this node as a spare."""
    generation, go = agent.generation, agent.view.go
    if generation is None or not agent.leads or not generation.one_world:
        return False
    if generation.index(agent.me.node) is None:
        return go is not None and go.value.g == generation.g
    return in_world(agent) and generation.g == agent.workers.g


def interval_s(agent: AgentState) -> float:
    """Return the seconds between two refreshes of this node's lease."""
    return (agent.workers.run_deadline.ttl_s or agent.me.spec.lease_ttl_s) / ASKS_PER_TTL


def silent_at(agent: AgentState) -> float:
    """When this node's lease has missed a refresh."""
    return agent.workers.run_deadline.refreshed_at + SILENT_REFRESHES * interval_s(agent)


def store_is_silent(agent: AgentState) -> bool:
    """Return whether this node's lease has missed a refresh."""
    return agent.now > silent_at(agent)


def needs_vouch(agent: AgentState) -> bool:
    """The workers run, the store is silent, and this node has not asked for a vouch within the last interval."""
    return _lacks_store(agent) and agent.now >= agent.links.vouch_asked_at + interval_s(agent)


def _lacks_store(agent: AgentState) -> bool:
    runs = agent.phase is Phase.RUNNING and agent.workers.one_world
    return runs and (not agent.registration.registered or store_is_silent(agent))


def ask_vouch(agent: AgentState) -> None:
    """Ask the nodes that watch this one for a vouch."""
    agent.links.vouch_asked_at = agent.now
    agent.act(AskVouch(agent.workers.g))


def ask_vouch_at(agent: AgentState) -> float:
    """When to ask for the next vouch, or when the store will count as silent."""
    if _lacks_store(agent):
        return agent.links.vouch_asked_at + interval_s(agent)
    waits = (agent.phase is Phase.RUNNING and agent.workers.one_world) or vouches(agent)
    return silent_at(agent) + 1e-3 if waits and not store_is_silent(agent) else float("inf")
