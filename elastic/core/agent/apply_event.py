"""How each event changes what an agent knows (pure)."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from elastic.core.agent import inbound_link_policy
from elastic.core.agent.actions import LogLine
from elastic.core.agent.events import (
    DrainRequested,
    Event,
    InboundLinksChanged,
    LeaseGranted,
    LeaseGrantFailed,
    LeaseRefreshed,
    LinksAnswered,
    LinksChanged,
    NodeLookedUp,
    NodePrepared,
    NodeProvenDead,
    PeersUnreachable,
    PredecessorFound,
    ProcessProvenDead,
    SessionLost,
    Tick,
    TransactionAnswered,
    ViewChanged,
    VouchAsked,
    Vouched,
    WorkerExited,
    WorkersGone,
    WorkersHung,
    WorkersListen,
)
from elastic.core.agent.links import RECENT_ASKS
from elastic.core.agent.state import AgentState, PendingDrain, Phase
from elastic.core.agent.vouching import interval_s, may_grant
from elastic.core.decide import remember
from elastic.core.membership.situation import Situation
from elastic.core.model import Generation
from elastic.core.partition import cannot_reach, nodes_to_probe

GRANT_RETRY_S = 0.5
ASK_AGAIN_S = 0.5
"""A question to the store that led to nothing is asked again after this pause."""
RECORD_AGAIN_S = 10.0
"""A word that others wait for is said again after this time, and then after twice as long each time: somebody may have
deleted or damaged it."""
RECORD_AGAIN_MAX_S = 600.0
PROPOSALS = ("form", "go", "verdict")
SEEN_BY_ITS_WRITER = ("register", "say", "form", "go", "verdict")
"""Transactions that change what every agent follows: the next one waits until the view shows them."""


def apply_event(agent: AgentState, event: Event) -> None:
    """Take in one event."""
    match event:
        case ViewChanged():
            _view(agent, event)
        case LeaseGranted():
            agent.registration.granting = False
            agent.registration.lease, agent.registration.lease_ttl_s = event.lease, event.ttl_s
            agent.registration.unproven_refresh = (event.sent_at, event.ttl_s)
        case LeaseGrantFailed():
            agent.registration.granting = False
            agent.registration.grant_again_at = agent.now + GRANT_RETRY_S
        case LeaseRefreshed():
            if event.lease == agent.registration.lease:
                _refreshed(agent, event)
        case SessionLost():
            if event.lease == agent.registration.lease:
                _session_lost(agent)
        case TransactionAnswered():
            _answered(agent, event)
        case PredecessorFound():
            _predecessor_found(agent, event)
        case WorkerExited():
            if event.g == agent.workers.g and not agent.workers.gone and (event.own or event.also):
                (agent.workers.own_exits if event.own else agent.workers.also_exits).append(event.exit)
        case WorkersHung():
            if event.g == agent.workers.g and not agent.workers.gone:
                agent.workers.own_exits.extend(event.exits)
                agent.workers.hung = True
        case PeersUnreachable():
            if event.g == agent.workers.g and not agent.workers.gone:
                _unreached(agent, event)
        case WorkersListen():
            if event.g == agent.workers.g and not agent.workers.gone:
                agent.memory = replace(agent.memory, listening=event.g)
        case WorkersGone():
            if event.g == agent.workers.g:
                agent.workers.gone = True
                agent.workers.step = max(agent.workers.step, event.step)
        case NodePrepared():
            agent.registration.prepared = True
        case DrainRequested():
            _drain(agent, event)
        case LinksChanged():
            agent.links.up = event.nodes
            agent.links.silent &= event.nodes
            _update_liveness(agent, agent.memory.late & agent.links.silent)
        case LinksAnswered():
            _links_answered(agent, event)
        case VouchAsked():
            recent = {
                node: times
                for node, times in agent.links.yielding.items()
                if agent.now <= times[1] + agent.workers.run_deadline.ttl_s / 2
            }
            first, _ = recent.get(event.node, (agent.now, agent.now))
            agent.links.yielding = {**recent, event.node: (first, agent.now)}
        case Vouched():
            if event.g == agent.workers.g and not agent.workers.gone and may_grant(agent, event.node, event.g):
                agent.workers.run_deadline = agent.workers.run_deadline.vouched(
                    event.asked_at + min(event.seconds, agent.workers.run_deadline.ttl_s)
                )
        case InboundLinksChanged():
            inbound_link_policy.dialled(agent, event.nodes)
        case NodeLookedUp():
            inbound_link_policy.looked_up(agent, event.node, event.registered)
        case ProcessProvenDead():
            if event.host not in agent.memory.distrusted:
                agent.memory = replace(agent.memory, gone=agent.memory.gone | {(event.node, event.create_revision)})
        case NodeProvenDead():
            agent.memory = replace(agent.memory, dead=agent.memory.dead | {event.node})
        case Tick():
            pass


def _on_drain_order(agent: AgentState) -> None:
    """An operator tells this node to leave. What was said to another node of this name is none of its business."""
    stored = agent.view.leaves.get(agent.me.node)
    if (
        stored is None
        or agent.registration.create_revision is None
        or stored.mod_revision <= agent.leaving.orders_read_to
    ):
        return
    agent.leaving.orders_read_to = stored.mod_revision
    deadline = None if stored.value.within_s is None else agent.now + stored.value.within_s
    _drain(agent, DrainRequested(0, stored.value.reason, deadline))


def _drain(agent: AgentState, event: DrainRequested) -> None:
    """The first drain counts; one that comes after it can only leave less time."""
    if agent.leaving.drain is None:
        agent.leaving.drain = PendingDrain(agent.now, event.exit_code, event.reason, event.deadline)
    elif event.deadline is not None and (
        agent.leaving.drain.deadline is None or event.deadline < agent.leaving.drain.deadline
    ):
        agent.leaving.drain = replace(agent.leaving.drain, deadline=event.deadline)


def _unreached(agent: AgentState, event: PeersUnreachable) -> None:
    """Workers wait, and other machines are not reached. If that has lasted, and the job can do without, it counts.

    So it is also in a planned stop, where they wait to save together. Who is left out is judged at the next gate, when
    all have said whom they reach. Once they are stopped for a failure or a loss, what was said last counts.
    """
    at_work = agent.phase is Phase.RUNNING or (
        agent.phase is Phase.STOPPING and agent.workers.planned and not agent.workers.hurried
    )
    if not at_work:
        return
    generation, spec = agent.generation, agent.spec
    left = _remaining_without(agent, generation, event.nodes) if generation is not None else 0
    can = spec.host_cooldown_s > 0 and left >= spec.np.low
    if event.nodes != agent.workers.unreached:
        agent.workers.unreached = event.nodes
        agent.act(LogLine(cannot_reach(event.nodes, spec, can=can)))
    if event.exits and can and not agent.workers.tasks and not agent.workers.own_exits:
        agent.workers.own_exits.extend(event.exits)
        agent.workers.hung = True


def _remaining_without(agent: AgentState, generation: Generation, unreached: Collection[str]) -> int:
    """How many nodes the job would have without those that are not reached; spares only the proposer sees.

    A proposer that reaches nobody is most likely itself the one that is cut off.
    """
    members = [member.node for member in generation.members]
    spares = (
        len(Situation(agent.view, agent.spec, agent.memory, agent.policy, agent.now).joining_nodes())
        if agent.succession.decision is not None
        else 0
    )
    alone = spares > 0 and set(nodes_to_probe(members, agent.me.node)) <= set(unreached)
    return len(members) - (1 if alone else len(unreached)) + spares


def _links_answered(agent: AgentState, event: LinksAnswered) -> None:
    """Count a node that missed the newest question as unheard until it answers another one or its link is new.

    A node that answered the question before, a moment ago, is only late.
    """
    if event.number != agent.links.asked:
        return
    agent.links.awaiting = False
    agent.links.silent = (agent.links.asked_whom & agent.links.up) - event.nodes
    recent = agent.links.asked_at <= agent.links.heard_at + RECENT_ASKS * interval_s(agent)
    late = agent.links.silent & agent.links.answered if recent else frozenset[str]()
    agent.links.heard_at, agent.links.answered = agent.links.asked_at, event.nodes
    _update_liveness(agent, late)
    agent.memory = replace(agent.memory, answered_g=max(agent.memory.answered_g, agent.links.asked_about))


def _update_liveness(agent: AgentState, late: frozenset[str]) -> None:
    """Record which nodes are heard, which were heard before and are not now, and which of these are only late."""
    linked = agent.links.up - agent.links.silent
    unheard = (agent.memory.unheard | agent.memory.linked) - linked
    agent.memory = replace(agent.memory, linked=linked, unheard=unheard, late=late)


def _view(agent: AgentState, event: ViewChanged) -> None:
    world = agent.generation
    agent.store.view = event.view
    agent.store.looks += 1
    if event.listing != agent.store.listing:
        agent.store.relist_wanted = False
    agent.store.listing = event.listing
    if not agent.store.first_revision:
        agent.leaving.orders_read_to = agent.store.first_revision = max(event.view.revision, 1)
    incarnation = event.view.incarnation.value if event.view.incarnation is not None else None
    # A key that a person damaged or deleted is not another store; one that is empty has nothing else either.
    empty = event.view.spec is None and event.view.generation is None
    known = agent.keys.incarnation not in event.view.damaged and (incarnation is not None or empty)
    if known and agent.store.incarnation is not None and incarnation != agent.store.incarnation:
        agent.store.floor = agent.registration.registered_at_revision = agent.leaving.orders_read_to = (
            0  # It counts its revisions anew.
        )
        agent.registration.lease, agent.registration.unproven_refresh = None, None
        agent.workers.run_deadline = agent.workers.run_deadline.lost()
        agent.unregister()
        if world is not None:
            agent.memory = replace(agent.memory, size_before=len(world.members))
        if agent.workers.gone:
            agent.forget_store()
        else:
            agent.store.replaced = True
    if known and (incarnation is not None or agent.workers.gone):
        agent.store.incarnation = incarnation
    _own_key(agent)
    _on_drain_order(agent)
    agent.memory = remember(agent.view, agent.memory, agent.me.node, agent.now)
    _distrust_hosts(agent)


def _distrust_hosts(agent: AgentState) -> None:
    """A node that speaks again after its "death" switches link proofs off for its host; the generation says so too."""
    named = frozenset(agent.generation.distrusted if agent.generation is not None else ()) - agent.memory.distrusted
    if named:
        agent.memory = replace(agent.memory, distrusted=agent.memory.distrusted | named)
    for node, created in agent.memory.gone:
        stored = agent.view.members.get(node)
        if stored is None or stored.create_revision == created or stored.value.host in agent.memory.distrusted:
            continue
        host = stored.value.host
        agent.memory = replace(agent.memory, distrusted=agent.memory.distrusted | {host})
        text = f"{node} is there again, although its connection had shown that its process was gone (a firewall?); "
        agent.act(LogLine(f"{text}from now on only the leases of {host} count", warn=True))


def _own_key(agent: AgentState) -> None:
    """Learn from the store whether this node is registered; it knows better than any answer.

    One revision may arrive in parts, so only a later one without the key shows that it is gone. Then the lease may
    live: somebody has deleted the key, has damaged it, or has taken it from under the lease. It is written once more,
    and the workers run on for as long as the right lasts that the lease has given so far. Everybody reckons with that:
    so runs a node whose lease was revoked and which has not heard of it.
    """
    own = agent.view.members.get(agent.me.node)
    held = own is not None and own.lease == agent.registration.lease and agent.registration.lease is not None
    if (
        agent.registration.create_revision is not None
        and not held
        and agent.view.revision > agent.registration.registered_at_revision
    ):
        agent.unregister()
        agent.registration.keyless = True
        if agent.phase is not Phase.LEAVING:
            agent.act(LogLine("this node's key is gone from etcd, or is not its own any more: it is written again"))
    elif own is not None and held:
        agent.registration.create_revision = own.create_revision
        _holds_key(agent)
        agent.registration.registered_at_revision = max(agent.registration.registered_at_revision, own.create_revision)


def _refreshed(agent: AgentState, event: LeaseRefreshed) -> None:
    """A lease gives the right to run for as long as it holds this node's key, from when it was last refreshed.

    A key that is not in the store as the watch has shown it gives none: the others may see what a deaf watch hides.
    """
    if agent.registration.create_revision is None:
        agent.registration.unproven_refresh = (event.sent_at, event.ttl_s)
        return
    own = agent.view.members.get(agent.me.node)
    if event.key_revision == (own.mod_revision if own is not None else agent.registration.create_revision):
        agent.workers.run_deadline = agent.workers.run_deadline.refreshed(
            event.sent_at, event.ttl_s, agent.spec.store_outage_limit_s
        )
    else:
        agent.store.relist_wanted = True


def _holds_key(agent: AgentState) -> None:
    agent.registration.keyless = False
    if agent.registration.unproven_refresh is not None:
        agent.workers.run_deadline = agent.workers.run_deadline.refreshed(
            *agent.registration.unproven_refresh, agent.spec.store_outage_limit_s
        )
        agent.registration.unproven_refresh = None


def _session_lost(agent: AgentState) -> None:
    """Register again with another lease.

    The workers run on for as long as the lost one has given the right: it may have ended before its time, by a person's
    hand or by that of a leader of etcd who was not the leader any more (etcd 15247), and soon there is the next.
    """
    agent.registration.lease, agent.registration.unproven_refresh = None, None
    agent.registration.keyless = False
    agent.unregister()


def _answered(agent: AgentState, event: TransactionAnswered) -> None:
    transaction = event.transaction
    if agent.store.inflight is transaction:
        agent.store.inflight = None
    if event.succeeded is False and transaction.kind == "register":
        if agent.registration.keyless and transaction.lease == agent.registration.lease:
            _session_lost(agent)  # Most likely it was the lease that went, and the key with it.
        _registration_conflict(agent)
        return
    if event.succeeded is None:
        agent.store.listing_wanted = agent.store.listing + 1
        agent.store.relist_wanted = True
        return
    if not event.succeeded or transaction.kind in SEEN_BY_ITS_WRITER:
        agent.store.floor = max(agent.store.floor, event.revision)
    if transaction.kind == "leave":
        agent.leaving.deregistered = True
    if not event.succeeded:
        if transaction.kind in PROPOSALS:
            agent.succession.refused_compares, agent.succession.propose_again_at = (
                transaction.compares,
                agent.now + ASK_AGAIN_S,
            )
        agent.registration.members_exist = None
        agent.store.relist_wanted = True
        if transaction.outcome is not None and not transaction.outcome[1].over:
            if transaction.outcome == agent.workers.outcome_refused:
                agent.workers.outcome_written = (
                    transaction.outcome
                )  # An earlier try, whose answer was lost, stands there.
            agent.workers.outcome_refused = (
                transaction.outcome
            )  # The first time it may be the incarnation that did not fit.
        return
    if (
        transaction.kind == "register"
        and agent.registration.lease is not None
        and transaction.lease == agent.registration.lease
    ):
        own = agent.view.members.get(agent.me.node)
        agent.registration.create_revision = own.create_revision if own is not None else event.revision
        _holds_key(agent)
        agent.registration.registered_at_revision = event.revision
        if agent.phase is Phase.RUNNING:
            agent.act(LogLine("registered again; the workers have run on"))
        if event.older is not None and event.older.key != agent.keys.member(agent.me.node):
            agent.succession.older_cursor, agent.succession.older_node = (
                agent.registration.create_revision,
                event.older.key.removeprefix(agent.keys.members),
            )
            agent.succession.older_known = event.older if event.older.mod_revision else None
    elif transaction.kind == "record":
        again = agent.workers.outcome_written == transaction.outcome
        agent.workers.record_again_s = (
            min(2 * agent.workers.record_again_s, RECORD_AGAIN_MAX_S) if again else RECORD_AGAIN_S
        )
        agent.workers.outcome_written, agent.workers.recorded_at = transaction.outcome, agent.now
    elif transaction.kind == "say":
        agent.leaving.announced = True


def _registration_conflict(agent: AgentState) -> None:
    """Something that the registration compared has changed: try again as soon as the watch shows what.

    Where a thousand nodes begin a job together, all but one come second. None of them lists for that.
    """
    agent.registration.members_exist = None
    agent.registration.outdated = agent.store.sent_at


def _predecessor_found(agent: AgentState, event: PredecessorFound) -> None:
    if event.before_revision == 0:
        agent.succession.older_asked = None
        if not event.failed:
            agent.registration.members_exist = event.node is not None
        return
    if agent.succession.older_asked == event.before_revision:
        agent.succession.older_asked = None
        if event.failed:
            agent.succession.older_again_at = agent.now + ASK_AGAIN_S
        else:
            agent.succession.older_node = event.node
            agent.succession.older_cursor = event.create_revision if event.node is not None else 0
