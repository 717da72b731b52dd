"""How each event changes what an agent knows (pure)."""

from __future__ import annotations

import dataclasses
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
from elastic.core.model import Generation, JobSpec
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


def apply_event(f: AgentState, event: Event) -> None:
    """Take in one event."""
    match event:
        case ViewChanged():
            _view(f, event)
        case LeaseGranted():
            f.granting = False
            f.lease, f.lease_ttl_s = event.lease, event.ttl_s
            f.refreshed = (event.sent_at, event.ttl_s)
        case LeaseGrantFailed():
            f.granting = False
            f.grant_again_at = f.now + GRANT_RETRY_S
        case LeaseRefreshed():
            if event.lease == f.lease:
                _refreshed(f, event)
        case SessionLost():
            if event.lease == f.lease:
                _session_lost(f)
        case TransactionAnswered():
            _answered(f, event)
        case PredecessorFound():
            _predecessor_found(f, event)
        case WorkerExited():
            if event.g == f.workers_g and not f.workers_gone and (event.own or event.also):
                (f.own_exits if event.own else f.also_exits).append(event.exit)
        case WorkersHung():
            if event.g == f.workers_g and not f.workers_gone:
                f.own_exits.extend(event.exits)
                f.hung = True
        case PeersUnreachable():
            if event.g == f.workers_g and not f.workers_gone:
                _unreached(f, event)
        case WorkersListen():
            if event.g == f.workers_g and not f.workers_gone:
                f.memory = replace(f.memory, listening=event.g)
        case WorkersGone():
            if event.g == f.workers_g:
                f.workers_gone = True
                f.step = max(f.step, event.step)
        case NodePrepared():
            f.prepared = True
        case DrainRequested():
            _drain(f, event)
        case LinksChanged():
            f.links_up = event.nodes
            f.silent &= event.nodes
            _update_liveness(f, f.memory.late & f.silent)
        case LinksAnswered():
            _links_answered(f, event)
        case VouchAsked():
            recent = {node: times for node, times in f.yielding.items() if f.now <= times[1] + f.run_deadline.ttl_s / 2}
            first, _ = recent.get(event.node, (f.now, f.now))
            f.yielding = {**recent, event.node: (first, f.now)}
        case Vouched():
            if event.g == f.workers_g and not f.workers_gone and may_grant(f, event.node, event.g):
                f.run_deadline = f.run_deadline.vouched(event.asked_at + min(event.seconds, f.run_deadline.ttl_s))
        case InboundLinksChanged():
            inbound_link_policy.dialled(f, event.nodes)
        case NodeLookedUp():
            inbound_link_policy.looked_up(f, event.node, event.registered)
        case ProcessProvenDead():
            if event.host not in f.memory.distrusted:
                f.memory = replace(f.memory, gone=f.memory.gone | {(event.node, event.create_revision)})
        case NodeProvenDead():
            f.memory = replace(f.memory, dead=f.memory.dead | {event.node})
        case Tick():
            pass


def _on_drain_order(f: AgentState) -> None:
    """An operator tells this node to leave. What was said to another node of this name is none of its business."""
    stored = f.view.leaves.get(f.me.node)
    if stored is None or f.registered is None or stored.mod_revision <= f.told_at_revision:
        return
    f.told_at_revision = stored.mod_revision
    deadline = None if stored.value.within_s is None else f.now + stored.value.within_s
    _drain(f, DrainRequested(0, stored.value.reason, deadline))


def _drain(f: AgentState, event: DrainRequested) -> None:
    """The first drain counts; one that comes after it can only leave less time."""
    if f.drain is None:
        f.drain = PendingDrain(f.now, event.exit_code, event.reason, event.deadline)
    elif event.deadline is not None and (f.drain.deadline is None or event.deadline < f.drain.deadline):
        f.drain = replace(f.drain, deadline=event.deadline)


def _unreached(f: AgentState, event: PeersUnreachable) -> None:
    """Workers wait, and other machines are not reached. If that has lasted, and the job can do without, it counts.

    So it is also in a planned stop, where they wait to save together. Who is left out is judged at the next gate, when
    all have said whom they reach. Once they are stopped for a failure or a loss, what was said last counts.
    """
    at_work = f.phase is Phase.RUNNING or (f.phase is Phase.STOPPING and f.planned and not f.hurried)
    if not at_work:
        return
    generation, spec = f.generation, _spec(f)
    left = _remaining_without(f, generation, event.nodes) if generation is not None else 0
    can = spec.host_cooldown_s > 0 and left >= spec.np.low
    if event.nodes != f.unreached:
        f.unreached = event.nodes
        f.act(LogLine(cannot_reach(event.nodes, spec, can=can)))
    if event.exits and can and not f.tasks and not f.own_exits:
        f.own_exits.extend(event.exits)
        f.hung = True


def _remaining_without(f: AgentState, generation: Generation, unreached: Collection[str]) -> int:
    """How many nodes the job would have without those that are not reached; spares only the proposer sees.

    A proposer that reaches nobody is most likely itself the one that is cut off.
    """
    members = [place.node for place in generation.members]
    spares = (
        len(Situation(f.view, _spec(f), f.memory, f.policy, f.now).joining_nodes()) if f.decision is not None else 0
    )
    alone = spares > 0 and set(nodes_to_probe(members, f.me.node)) <= set(unreached)
    return len(members) - (1 if alone else len(unreached)) + spares


def _links_answered(f: AgentState, event: LinksAnswered) -> None:
    """Count a node that missed the newest question as unheard until it answers another one or its link is new.

    A node that answered the question before, a moment ago, is only late.
    """
    if event.number != f.asked:
        return
    f.awaiting = False
    f.silent = (f.asked_whom & f.links_up) - event.nodes
    recent = f.asked_at <= f.heard_at + RECENT_ASKS * interval_s(f)
    late = f.silent & f.answered if recent else frozenset[str]()
    f.heard_at, f.answered = f.asked_at, event.nodes
    _update_liveness(f, late)
    f.memory = replace(f.memory, answered_g=max(f.memory.answered_g, f.asked_about))


def _update_liveness(f: AgentState, late: frozenset[str]) -> None:
    """Record which nodes are heard, which were heard before and are not now, and which of these are only late."""
    linked = f.links_up - f.silent
    unheard = (f.memory.unheard | f.memory.linked) - linked
    f.memory = replace(f.memory, linked=linked, unheard=unheard, late=late)


def _spec(f: AgentState) -> JobSpec:
    return f.view.spec.value if f.view.spec is not None else f.me.spec


def _view(f: AgentState, event: ViewChanged) -> None:
    world = f.generation
    f.looks += 1
    if event.listing != f.listing:
        f.relist_wanted = False
    f.listing = event.listing
    if not f.first_revision:
        f.told_at_revision = f.first_revision = max(event.view.revision, 1)
    if event.view.schema is not None:  # The documents cannot be read; the last ones that could are still known.
        f.view = dataclasses.replace(f.view, revision=event.view.revision, schema=event.view.schema)
        return
    f.view = event.view
    incarnation = event.view.incarnation.value if event.view.incarnation is not None else None
    # A key that a person damaged or deleted is not another store; one that is empty has nothing else either.
    empty = event.view.spec is None and event.view.generation is None
    known = f.keys.incarnation not in event.view.damaged and (incarnation is not None or empty)
    if known and f.incarnation is not None and incarnation != f.incarnation:
        f.floor = f.registered_at_revision = f.told_at_revision = 0  # It counts its revisions anew.
        f.lease, f.refreshed = None, None
        f.run_deadline = f.run_deadline.lost()
        f.unregister()
        if world is not None:
            f.memory = replace(f.memory, size_before=len(world.members))
        if f.workers_gone:
            f.forget_store()
        else:
            f.another_store = True
    if known and (incarnation is not None or f.workers_gone):
        f.incarnation = incarnation
    _own_key(f)
    _on_drain_order(f)
    f.memory = remember(f.view, f.memory, f.me.node, f.now)
    _distrust_hosts(f)


def _distrust_hosts(f: AgentState) -> None:
    """A node that speaks again after its "death" switches link proofs off for its host; the generation says so too."""
    named = frozenset(f.generation.distrusted if f.generation is not None else ()) - f.memory.distrusted
    if named:
        f.memory = replace(f.memory, distrusted=f.memory.distrusted | named)
    for node, created in f.memory.gone:
        stored = f.view.members.get(node)
        if stored is None or stored.create_revision == created or stored.value.host in f.memory.distrusted:
            continue
        host = stored.value.host
        f.memory = replace(f.memory, distrusted=f.memory.distrusted | {host})
        text = f"{node} is there again, although its connection had shown that its process was gone (a firewall?); "
        if f.phase is not Phase.ENDED:
            f.act(LogLine(f"{text}from now on only the leases of {host} count", warn=True))


def _own_key(f: AgentState) -> None:
    """Learn from the store whether this node is registered; it knows better than any answer.

    One revision may arrive in parts, so only a later one without the key shows that it is gone. Then the lease may
    live: somebody has deleted the key, has damaged it, or has taken it from under the lease. It is written once more,
    and the workers run on for as long as the right lasts that the lease has given so far. Everybody reckons with that:
    so runs a node whose lease was revoked and which has not heard of it.
    """
    own = f.view.members.get(f.me.node)
    held = own is not None and own.lease == f.lease and f.lease is not None
    if f.registered is not None and not held and f.view.revision > f.registered_at_revision:
        f.unregister()
        f.keyless = True
        if f.phase not in (Phase.LEAVING, Phase.ENDED):
            f.act(LogLine("this node's key is gone from etcd, or is not its own any more: it is written again"))
    elif own is not None and held:
        f.registered = own.create_revision
        _holds_key(f)
        f.registered_at_revision = max(f.registered_at_revision, own.create_revision)


def _refreshed(f: AgentState, event: LeaseRefreshed) -> None:
    """A lease gives the right to run for as long as it holds this node's key, from when it was last refreshed.

    A key that is not in the store as the watch has shown it gives none: the others may see what a deaf watch hides.
    """
    if f.registered is None:
        f.refreshed = (event.sent_at, event.ttl_s)
        return
    own = f.view.members.get(f.me.node)
    if event.key_revision == (own.mod_revision if own is not None else f.registered):
        f.run_deadline = f.run_deadline.refreshed(event.sent_at, event.ttl_s, _spec(f).store_outage_limit_s)
    else:
        f.relist_wanted = True


def _holds_key(f: AgentState) -> None:
    f.keyless = False
    if f.refreshed is not None:
        f.run_deadline = f.run_deadline.refreshed(*f.refreshed, _spec(f).store_outage_limit_s)
        f.refreshed = None


def _session_lost(f: AgentState) -> None:
    """Register again with another lease.

    The workers run on for as long as the lost one has given the right: it may have ended before its time, by a person's
    hand or by that of a leader of etcd who was not the leader any more (etcd 15247), and soon there is the next.
    """
    f.lease, f.refreshed = None, None
    f.keyless = False
    f.unregister()


def _answered(f: AgentState, event: TransactionAnswered) -> None:
    transaction = event.transaction
    if f.inflight is transaction:
        f.inflight = None
    if event.succeeded is False and transaction.kind == "register":
        if f.keyless and transaction.lease == f.lease:
            _session_lost(f)  # Most likely it was the lease that went, and the key with it.
        _registration_conflict(f)
        return
    if event.succeeded is None:
        f.listing_wanted = f.listing + 1
        f.relist_wanted = True
        return
    if not event.succeeded or transaction.kind in SEEN_BY_ITS_WRITER:
        f.floor = max(f.floor, event.revision)
    if transaction.kind == "leave":
        f.left = True
    if not event.succeeded:
        if transaction.kind in PROPOSALS:
            f.refused, f.propose_again_at = transaction.compares, f.now + ASK_AGAIN_S
        f.somebody_lives = None
        f.relist_wanted = True
        if transaction.outcome is not None and not transaction.outcome[1].over:
            if transaction.outcome == f.outcome_refused:
                f.outcome_written = transaction.outcome  # An earlier try, whose answer was lost, stands there.
            f.outcome_refused = transaction.outcome  # The first time it may be the incarnation that did not fit.
        return
    if transaction.kind == "register" and f.lease is not None and transaction.lease == f.lease:
        own = f.view.members.get(f.me.node)
        f.registered = own.create_revision if own is not None else event.revision
        _holds_key(f)
        f.registered_at_revision = event.revision
        if f.phase is Phase.RUNNING:
            f.act(LogLine("registered again; the workers have run on"))
        if event.older is not None and event.older.key != f.keys.member(f.me.node):
            f.older_cursor, f.older_node = f.registered, event.older.key.removeprefix(f.keys.members)
            f.older_known = event.older if event.older.mod_revision else None
    elif transaction.kind == "record":
        again = f.outcome_written == transaction.outcome
        f.record_again_s = min(2 * f.record_again_s, RECORD_AGAIN_MAX_S) if again else RECORD_AGAIN_S
        f.outcome_written, f.recorded_at = transaction.outcome, f.now
    elif transaction.kind == "say":
        f.drain_said = True


def _registration_conflict(f: AgentState) -> None:
    """Something that the registration compared has changed: try again as soon as the watch shows what.

    Where a thousand nodes begin a job together, all but one come second. None of them lists for that.
    """
    f.somebody_lives = None
    f.outdated = f.sent_at


def _predecessor_found(f: AgentState, event: PredecessorFound) -> None:
    if event.before_revision == 0:
        f.older_asked = None
        if not event.failed:
            f.somebody_lives = event.node is not None
        return
    if f.older_asked == event.before_revision:
        f.older_asked = None
        if event.failed:
            f.older_again_at = f.now + ASK_AGAIN_S
        else:
            f.older_node = event.node
            f.older_cursor = event.create_revision if event.node is not None else 0
