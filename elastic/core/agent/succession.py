"""Which node leads, and what the leader does: it decides, proposes, and revokes the leases of dead nodes (pure).

The members of the newest generation by M_id, then the spares by age, make a line, and the first of it leads. Every
other agent follows the one before it, and takes over when that one is gone. Two that take themselves for the leader
cannot both write, because each proposal compares what it rests on.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import FindPredecessor, MirrorKeys, RevokeLease
from elastic.core.agent.links.deaths import is_proven_dead
from elastic.core.agent.links.vouching import nodes_without_store, should_take_over, yielding_ends_at
from elastic.core.agent.state import AgentState, Phase
from elastic.core.agent.store import ASK_AGAIN_S, TransactionAnswered, ViewChanged, may_write, send
from elastic.core.decide import decide
from elastic.core.membership.decision import WaitDecision
from elastic.core.membership.memory import remember
from elastic.core.transactions import propose

PROPOSALS = ("form", "go", "verdict")
"""Transactions of the leader."""
NO_LEADER = (Phase.JOINING, Phase.LEAVING, Phase.ENDED)
"""Phases of nodes that propose nothing."""


def remember_view(agent: AgentState, event: ViewChanged) -> None:
    """Note what `decide` wants to know later of this view: the next leader may be this node."""
    agent.memory = remember(agent.view, agent.memory, agent.me.node, agent.now)


def on_proposal_answer(agent: AgentState, event: TransactionAnswered) -> None:
    """A proposal that was refused is not repeated at once."""
    if not event.succeeded:
        agent.succession.refused_compares = event.transaction.compares
        agent.succession.propose_again_at = agent.now + ASK_AGAIN_S


def is_leader(agent: AgentState) -> bool:
    """This node is the leader, and sees the whole job."""
    registered = agent.registration.registered and agent.phase not in NO_LEADER
    return registered and agent.view.complete and agent.succession.leads


def resigns(agent: AgentState) -> bool:
    """This node is not the leader, or not any more."""
    return agent.succession.decision is not None and not is_leader(agent)


def drop_decision(agent: AgentState) -> None:
    """What this node has decided counts no more."""
    agent.succession.decision = None


def may_decide(agent: AgentState) -> bool:
    """This node leads, and what it decides now could be sent; while a thousand join, deciding takes long."""
    inflight = agent.store.inflight
    proposed = inflight is not None and inflight.kind in PROPOSALS
    return is_leader(agent) and not proposed and agent.view.revision >= agent.store.floor


def make_decision(agent: AgentState) -> None:
    """Decide what the job does next."""
    if (astray := nodes_without_store(agent)) != agent.memory.astray:
        agent.memory = replace(agent.memory, astray=astray)
    agent.succession.decision, agent.memory = decide(agent.view, agent.memory, agent.policy, agent.now)


def waits_until(agent: AgentState) -> float:
    """When the decision may be another one although nothing happens."""
    decision = agent.succession.decision
    until = decision.until if isinstance(decision, WaitDecision) else None
    return until if until is not None else float("inf")


def may_propose(agent: AgentState) -> bool:
    """The decision is more than to wait, and it can be sent."""
    decision = agent.succession.decision
    return decision is not None and not isinstance(decision, WaitDecision) and may_write(agent)


def make_proposal(agent: AgentState) -> None:
    """Send the decision. The same would be refused again at once, and again, as fast as the store can answer."""
    succession, created = agent.succession, agent.registration.create_revision
    assert succession.decision is not None
    assert not isinstance(succession.decision, WaitDecision)
    succession.proposals += 1
    at = agent.wall_at_zero + agent.now
    proposal = propose(agent.keys, agent.view, agent.me.node, created, succession.decision, agent.tag, at)
    if proposal.compares != succession.refused_compares or agent.now >= succession.propose_again_at:
        send(agent, proposal)


def propose_again_at(agent: AgentState) -> float:
    """When a proposal that was refused is repeated."""
    return agent.succession.propose_again_at


def may_revoke(agent: AgentState) -> bool:
    """This node leads, and nodes are proven dead."""
    registered = agent.registration.registered
    proofs = agent.memory.gone or agent.memory.dead
    return registered and agent.view.complete and agent.succession.leads and bool(proofs)


def revoke_dead(agent: AgentState) -> None:
    """End the lease of each node whose death is proven, so that everybody sees it at once."""
    for node, stored in agent.view.members.items():
        dead = is_proven_dead(agent, node, stored.create_revision)
        if dead and stored.lease and stored.lease not in agent.succession.revoked:
            agent.succession.revoked |= {stored.lease}
            agent.act(RevokeLease(stored.lease))


# --- the line -------------------------------------------------------------------------------------------------------


class PredecessorFound(Struct, frozen=True):
    """The answer to `FindPredecessor`: the newest member registered before that revision, None if there is none.

    `failed` says that the store did not answer.
    """

    before_revision: int
    node: str | None
    create_revision: int = 0
    failed: bool = False


def on_predecessor(agent: AgentState, event: PredecessorFound) -> None:
    """Follow the predecessor that was found. The lookup from revision 0 asks whether anybody is registered."""
    line = agent.succession
    if event.before_revision != 0 and line.older_asked != event.before_revision:
        return
    line.older_asked = None
    if event.before_revision == 0:
        if not event.failed:
            agent.registration.members_exist = event.node is not None
    elif event.failed:
        line.older_again_at = agent.now + ASK_AGAIN_S
    else:
        line.older_node = event.node
        line.older_cursor = event.create_revision if event.node is not None else 0


def on_registered(agent: AgentState, event: TransactionAnswered) -> None:
    """The registration has read who came before this node."""
    older, line = event.older, agent.succession
    taken = event.succeeded and event.transaction.lease == agent.registration.lease
    if taken and older is not None and older.key != agent.keys.member(agent.me.node):
        line.older_cursor = agent.registration.create_revision
        line.older_node = older.key.removeprefix(agent.keys.members)
        line.older_known = older if older.mod_revision else None


def _present(agent: AgentState, node: str) -> bool:
    """Tell whether a node before this one in line can propose: it is registered, alive, and reaches the store."""
    stored = agent.view.members.get(node)
    if stored is None or should_take_over(agent, node):
        return False
    return not is_proven_dead(agent, node, stored.create_revision)


def follow(agent: AgentState) -> None:
    """Follow the member before this one in line; whoever has nobody before it follows everything and proposes."""
    line = agent.succession
    want = _place_in_line(agent) if agent.registration.registered else (False, None)
    if want is not None and want != line.following:
        line.following, line.decision = want, None
        if line.leads:  # Who was away when it proposed the last time may have been there since, and go again.
            agent.memory = replace(agent.memory, absent_since={})
        known, line.older_known = line.older_known, None
        agent.act(MirrorKeys(*want, known if known is not None and want == (False, line.older_node) else None))


def _place_in_line(agent: AgentState) -> tuple[bool, str | None] | None:
    """(True, None) for the first in line, (False, node) for the others, None while that is being looked up."""
    generation, line = agent.generation, agent.succession
    index = generation.index(agent.me.node) if generation is not None else None
    if generation is not None and generation.g != line.passed_g:
        line.passed, line.passed_g = frozenset(), generation.g
    if agent.view.complete:
        nearest = _nearest_before(agent, index)
        if nearest is None:
            return (True, None)
        line.passed -= {nearest}
        line.older_node = nearest
        line.older_cursor = min(agent.view.members[nearest].create_revision, agent.registration.create_revision)
        return (False, nearest)
    if generation is None or index is None:
        return _place_of_spare(agent)
    if agent.view.follows is not None and not _present(agent, agent.view.follows):
        line.passed |= {agent.view.follows}
    before = (member.node for member in reversed(generation.members[:index]) if member.node not in line.passed)
    nearest = next(before, None)
    return (nearest is None, nearest)


def _place_of_spare(agent: AgentState) -> tuple[bool, str | None] | None:
    line, followed, inflight = agent.succession, agent.view.follows, agent.store.inflight
    if line.older_cursor is None:
        line.older_cursor, line.older_node = agent.registration.create_revision, None
    elif line.older_node is not None and followed == line.older_node and not _is_valid_predecessor(agent, followed):
        line.older_node = None
    if line.older_node is not None or line.older_cursor == 0:
        return (line.older_node is None, line.older_node)
    if inflight is not None and inflight.kind == "register":
        return None  # The watch came before the answer, which knows who.
    if line.older_asked is None and line.older_cursor is not None and agent.now >= line.older_again_at:
        line.older_asked = line.older_cursor
        agent.act(FindPredecessor(line.older_cursor))
    return None


def _is_valid_predecessor(agent: AgentState, node: str) -> bool:
    """Tell whether the node that a spare follows is there, and still before it in line.

    Members of the generation always are; another spare may have registered again, and is younger then.
    """
    stored = agent.view.members.get(node)
    if stored is None or not _present(agent, node):
        return False
    inside = agent.generation is not None and agent.generation.index(node) is not None
    return inside or stored.create_revision < (agent.registration.create_revision)


def _nearest_before(agent: AgentState, index: int | None) -> str | None:
    """The nearest present node before this one, from a complete view: members by M_id, then spares by age."""
    generation = agent.generation
    members = [member.node for member in generation.members] if generation is not None else []
    if index is None:
        registered = agent.registration.create_revision
        spares = [
            (stored.create_revision, node)
            for node, stored in agent.view.members.items()
            if stored.create_revision < registered and node not in members
        ]
        members = members + [node for _, node in sorted(spares)]
        index = len(members)
    return next((node for node in reversed(members[:index]) if _present(agent, node)), None)


def follow_again_at(agent: AgentState) -> float:
    """When a lookup that failed is repeated, or a node that did not reach the store counts as reaching it again."""
    return agent.first_of((agent.succession.older_again_at, yielding_ends_at(agent)))
