"""Which node leads, and what the leader does: it decides, proposes, and revokes the leases of dead nodes (pure).

The leader has the key `leader`, under its lease. When that key is gone, or its node is proven dead, the other nodes try
to take it. Each waits a little longer than those before it, so that usually only one tries. Only the leader follows
members and outcomes. Two nodes that both believe they lead cannot both write, because each proposal compares everything
that it depends on.
"""

from __future__ import annotations

from msgspec.structs import replace

from elastic.core.agent.actions import MirrorKeys, RevokeLease
from elastic.core.agent.candidates import patience_s
from elastic.core.agent.links.deaths import is_proven_dead
from elastic.core.agent.links.silence import BEATS_PER_TIMEOUT, is_alone, leader_is_silent
from elastic.core.agent.state import AgentState, Phase
from elastic.core.agent.store import ASK_AGAIN_S, TransactionAnswered, ViewChanged, may_write, send
from elastic.core.decide import decide
from elastic.core.membership.decision import WaitDecision
from elastic.core.membership.memory import remember
from elastic.core.transactions import propose, take_lead

PROPOSALS = ("form", "go", "verdict")
"""Transactions of the leader."""
NO_LEADER = (Phase.JOINING, Phase.LEAVING, Phase.ENDED)
"""Phases in which a node proposes nothing."""


def remember_view(agent: AgentState, event: ViewChanged) -> None:
    """Note what `decide` needs to know later of this view, because this node may become the next leader."""
    agent.memory = remember(agent.view, agent.memory, agent.me.node, agent.now)


def on_proposal_answer(agent: AgentState, event: TransactionAnswered) -> None:
    """Delay the repetition of a refused proposal."""
    if not event.succeeded:
        agent.succession.refused_compares = event.transaction.compares
        agent.succession.propose_again_at = agent.now + ASK_AGAIN_S


def is_vacant(agent: AgentState) -> bool:
    """Return whether no living node leads.

    The key is gone, damaged or from this node's last lease, or its node is dead or silent.
    """
    leader = agent.view.leader
    if leader is None:  # The first registration writes both; a watch may show its other keys a moment earlier.
        return agent.view.incarnation is not None
    earlier_self = leader.value.node == agent.me.node and not agent.leads
    dead = is_proven_dead(agent, leader.value.node, leader.value.created or leader.create_revision)
    return earlier_self or dead or leader_is_silent(agent)


def note_vacancy(agent: AgentState) -> None:
    """Note since when no living node leads."""
    since = agent.succession.vacant_since
    agent.succession.vacant_since = (agent.now if since is None else since) if is_vacant(agent) else None


def lead_at(agent: AgentState) -> float:
    """When this node tries to lead; infinity while another node leads."""
    succession = agent.succession
    if succession.vacant_since is None or not _may_lead(agent):
        return float("inf")
    return max(succession.vacant_since + patience_s(agent) + _courtesy_s(agent), succession.lead_again_at)


def _courtesy_s(agent: AgentState) -> float:
    """Extra seconds for a leader that only this node does not hear.

    In a job of two nodes no third node can try the leader. If both live and cannot reach each other, the leader wins.
    """
    leader = agent.view.leader
    trial = agent.silence.trials.get(leader.value.node) if leader is not None else None
    if leader is None or trial is None or not is_alone(agent, leader.value.node):
        return 0.0
    return trial.silence.timeout_s / BEATS_PER_TIMEOUT


def _may_lead(agent: AgentState) -> bool:
    return agent.registration.registered and agent.phase not in NO_LEADER


def may_take_lead(agent: AgentState) -> bool:
    """No living node leads, and it is this node's turn."""
    return agent.now >= lead_at(agent) and may_write(agent)


def send_take_lead(agent: AgentState) -> None:
    """Try to become the leader."""
    registration = agent.registration
    created, lease = registration.create_revision, registration.lease or 0
    send(agent, take_lead(agent.keys, agent.view, agent.me.node, created, agent.me.member, lease))


def on_lead_answer(agent: AgentState, event: TransactionAnswered) -> None:
    """Pause after a refusal: another node was faster, and the watch shows it in a moment."""
    if not event.succeeded:
        agent.succession.lead_again_at = agent.now + ASK_AGAIN_S


def mirrors_too_much_or_little(agent: AgentState) -> bool:
    """This node has begun or ceased to lead: the leader mirrors everything, the others only the job's documents."""
    return agent.leads != agent.succession.mirrors_all


def change_mirror(agent: AgentState) -> None:
    """Switch the mirror between what the leader follows and what the others follow."""
    agent.succession.mirrors_all = agent.leads
    if agent.leads:  # A node that was absent when this one last led may have returned and left again since.
        agent.memory = replace(agent.memory, absent_since={}, failed_since={})
    agent.act(MirrorKeys(agent.leads))


def is_leader(agent: AgentState) -> bool:
    """This node is the leader, and sees the whole job."""
    return _may_lead(agent) and agent.view.complete and agent.leads


def resigns(agent: AgentState) -> bool:
    """This node has a decision and no longer leads."""
    return agent.succession.decision is not None and not is_leader(agent)


def drop_decision(agent: AgentState) -> None:
    """Drop the decision of a node that no longer leads."""
    agent.succession.decision = None


def may_decide(agent: AgentState) -> bool:
    """This node leads, and could send a decision now; deciding takes long while a thousand nodes join."""
    inflight = agent.store.inflight
    proposed = inflight is not None and inflight.kind in (*PROPOSALS, "evict")
    return is_leader(agent) and not proposed and agent.view.revision >= agent.store.floor


def make_decision(agent: AgentState) -> None:
    """Decide what the job does next."""
    agent.succession.decision, agent.memory = decide(agent.view, agent.memory, agent.policy, agent.now)


def waits_until(agent: AgentState) -> float:
    """When the decision may change although no event happens."""
    decision = agent.succession.decision
    until = decision.until if isinstance(decision, WaitDecision) else None
    return until if until is not None else float("inf")


def may_propose(agent: AgentState) -> bool:
    """The decision is not a wait, and it can be sent."""
    decision = agent.succession.decision
    return decision is not None and not isinstance(decision, WaitDecision) and may_write(agent)


def make_proposal(agent: AgentState) -> None:
    """Send the decision, but not one that was just refused, or it would be repeated as fast as the store answers."""
    succession, created = agent.succession, agent.registration.create_revision
    assert succession.decision is not None
    assert not isinstance(succession.decision, WaitDecision)
    at = agent.wall_at_zero + agent.now
    proposal = propose(agent.keys, agent.view, agent.me.node, created, succession.decision, at)
    if proposal.compares != succession.refused_compares or agent.now >= succession.propose_again_at:
        send(agent, proposal)


def propose_again_at(agent: AgentState) -> float:
    """When a refused proposal is repeated."""
    return agent.succession.propose_again_at


def may_revoke(agent: AgentState) -> bool:
    """This node leads, and nodes are proven dead."""
    proofs = agent.memory.gone or agent.memory.dead
    return agent.registration.registered and agent.view.complete and agent.leads and bool(proofs)


def revoke_dead(agent: AgentState) -> None:
    """Revoke the lease of each node whose death is proven, so that all nodes see it at once."""
    for node, stored in agent.view.members.items():
        dead = is_proven_dead(agent, node, stored.create_revision)
        if dead and stored.lease and stored.lease not in agent.succession.revoked:
            agent.succession.revoked |= {stored.lease}
            agent.act(RevokeLease(stored.lease))
