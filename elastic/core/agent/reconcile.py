"""What an agent asks of the store, of its nursery and of people, whatever its phase (pure).

Each duty looks at the facts and asks for what should be there and is not. At most one transaction is on its way.
"""

from __future__ import annotations

import zlib

import msgspec
from msgspec.structs import replace

from elastic.core import quarantine, text
from elastic.core.admission import join
from elastic.core.agent import inbound_link_policy, links, vouching
from elastic.core.agent.actions import (
    ExtendRunDeadline,
    FindPredecessor,
    LogLine,
    MirrorKeys,
    OpenSession,
    PublishClusterSpec,
    Relist,
    ReportFailure,
    RevokeLease,
    SendTransaction,
)
from elastic.core.agent.apply_event import ASK_AGAIN_S, PROPOSALS
from elastic.core.agent.state import AgentState, Phase
from elastic.core.decide import WaitDecision, decide
from elastic.core.model import Member, MemberState, Outcome, OutcomeKind
from elastic.core.restart_budget import budget_of
from elastic.core.transactions import Transaction, deregister, propose, record_outcome, unless_superseded, update_member


def report_changes(f: AgentState) -> None:
    """Before the rows are asked: tell people about a failure, and hold the right to run while everybody is heard."""
    go = f.view.go
    if (
        go is not None
        and go.value.cause is not None
        and f.registration.joined_at is not None
        and (go.value.g, 0) > f.workers.reported
    ):
        f.workers.reported = (go.value.g, 0)
        if f.generation is not None and f.generation.g == go.value.g:
            f.act(ReportFailure(go.value.cause, go.value.note))
    _report_revision(f)
    if go is not None and f.generation is not None and go.value.g == f.generation.g:
        f.leaving.idle_since = f.now  # A world runs, with this node or without it.
    vouching.extend_while_linked(f)


def _report_revision(f: AgentState) -> None:
    """Tell people about a failure that a revision of the roster mends, and those who work about who is in it now."""
    generation = f.generation
    if generation is None or not generation.rev or f.registration.joined_at is None:
        return
    if generation.cause is not None and (generation.g, generation.rev) > f.workers.reported:
        f.workers.reported = (generation.g, generation.rev)
        f.act(ReportFailure(generation.cause, ""))
    if generation.g == f.workers.g and generation.rev > f.workers.cluster_spec_rev and not f.workers.gone:
        f.workers.cluster_spec_rev = generation.rev
        if f.place is not None and f.stamp == (f.workers.g, f.workers.since):
            f.act(LogLine(f"revision {generation.rev} of the roster: {generation.reason}"))
            f.act(PublishClusterSpec(generation))


def reconcile(f: AgentState) -> None:
    """After the rows: ask for everything that is due."""
    _adopt_np(f)
    _log_spare(f)
    _record_never_started(f)
    extend_deadline(f)
    _follow_predecessor(f)
    _session(f)
    _refresh_view(f)
    if f.store.inflight is None and not _view_is_stale(f):
        _write(f)
    _propose(f)
    _revoke_dead(f)
    links.watch(f)
    links.ask(f)
    inbound_link_policy.check(f)


def next_wake_up(f: AgentState, drain_patience_s: float, record_patience_s: float) -> None:
    """Work out when this agent has something to do although nothing happens."""
    times: list[float] = []
    if isinstance(f.succession.decision, WaitDecision) and f.succession.decision.until is not None:
        times.append(f.succession.decision.until)
    if f.phase is Phase.RUNNING:
        times.append(f.workers.run_deadline.until())
        if f.leaving.drain is not None:
            times.append(f.leaving.drain.unheard_at(drain_patience_s))
    if f.phase is Phase.STOPPING and f.leaving.drain is not None:
        times.append(f.leaving.drain.workers_until)
    if f.phase is Phase.LEAVING or (f.phase in (Phase.JOINING, Phase.DONE) and f.leaving.drain is not None):
        times.append(f.entered_at + record_patience_s)
    if f.phase in (Phase.JOINING, Phase.SPARE, Phase.GATED) and f.limits.elastic_timeout_s is not None:
        times.append(f.leaving.idle_since + f.limits.elastic_timeout_s)
    idle = f.store.inflight is None and f.store.behind_since is None
    if _to_register(f) and idle:
        times.append(max(f.registration.grant_again_at, f.now + ASK_AGAIN_S))
    if f.store.behind_since is not None:
        times.append(f.store.behind_since + _patience_s(f))
    times += [f.succession.older_again_at, f.succession.propose_again_at, _record_again_at(f)]
    times += links.next_wake_up(f)
    times += inbound_link_policy.next_wake_up(f)
    later = [time for time in times if f.now < time < float("inf")]
    f.wake_at = min(later) if later else None


def _adopt_np(f: AgentState) -> None:
    """Where the user named no np, remember that the job has no maximum: this node may be the first in an empty etcd."""
    stored = f.view.spec
    if not f.me.np_given and stored is not None and stored.value.np.unlimited and stored.value.np != f.me.spec.np:
        f.me = replace(f.me, spec=replace(f.me.spec, np=stored.value.np))


def _log_spare(f: AgentState) -> None:
    """Say once for each generation that it goes on without this node, as soon as the view is not older than that.

    Where there is room the node is a spare for a moment only.
    """
    generation = f.generation
    if (
        f.phase is not Phase.SPARE
        or generation is None
        or f.leaving.drain is not None
        or f.workers.spare_g == generation.g
    ):
        return
    if (
        generation.members
        and generation.index(f.me.node) is None
        and f.view.revision >= f.registration.registered_at_revision
    ):
        f.workers.spare_g = generation.g
        spec = f.view.spec.value if f.view.spec is not None else None
        room = spec is not None and not spec.ips and spec.roles is None and len(generation.members) < spec.np.high
        if _report_quarantined(f, room=room):
            return
        until = "which joins at the next start" if room else "which takes over when one is lost"
        f.act(LogLine(f"spare: generation {generation.g} goes on without this node, {until}"))


def _report_quarantined(f: AgentState, *, room: bool) -> bool:
    """Say to a node why it is a spare, if that is because its host is kept out.

    One that others did not reach stays out where there is `room` for as long as the proposer does not reach it.
    """
    for entry in budget_of(f.view).hosts:
        until = f.memory.quarantine_deadlines.get((entry.host, entry.g), f.now)
        if entry.host == f.me.member.host and (until > f.now or (entry.unreachable and room)):
            at = f"{text.clock_time(f.wall_at_zero + until)} UTC" if until > f.now else "it can be reached"
            f.act(LogLine(f"kept out until {at}: {quarantine.reason_text(entry)}; it comes back by itself", warn=True))
            return True
    return False


def _record_never_started(f: AgentState) -> None:
    """Record that this node never started what it was to start: the gate, or the roster, waits for that word."""
    generation = f.generation
    if generation is None or not f.workers.gone or f.store.replaced:
        return
    stopped = Outcome(ended=OutcomeKind.STOPPED, over=True, host=f.me.member.host)
    before = generation.before
    said = (
        (f.workers.outcome_wanted[0], f.workers.outcome_wanted[1].since)
        if f.workers.outcome_wanted is not None
        else (0, 0)
    )
    last = before.start(f.me.node) if before is not None else None
    if last is not None and said < last:
        f.workers.finished = max(f.workers.finished, last)
        f.want_outcome(last[0], msgspec.structs.replace(stopped, since=last[1]))
    index = generation.index(f.me.node)
    if index is not None and generation.members[index].leaving:
        since = generation.members[index].since
        if (generation.g, since) > f.workers.finished:
            f.workers.finished = (generation.g, since)
            f.want_outcome(generation.g, msgspec.structs.replace(stopped, since=since))


def only_extends_deadline(f: AgentState) -> bool:
    """Tell whether a refresh of the lease changes nothing but how long this node may run.

    No time is up that this agent waits for, it does not wait for its right to start, and nobody before it in line has
    said that it does not reach the store.
    """
    settled = (
        f.registration.create_revision is not None and f.phase in (Phase.SPARE, Phase.RUNNING) and not f.links.yielding
    )
    return settled and (f.wake_at is None or f.now < f.wake_at)


def extend_deadline(f: AgentState) -> None:
    """Tell the nursery how long its workers may run, when that is longer than before."""
    if not f.workers.gone and f.workers.run_deadline.until() > f.workers.run_until:
        f.workers.run_until = f.workers.run_deadline.until()
        f.act(ExtendRunDeadline(f.workers.run_until))


def _to_register(f: AgentState) -> bool:
    """Tell whether this node is to be registered, and is not.

    Whose workers save before they leave needs its right to run for that. A job that has ended takes nobody.
    """
    saves = f.phase is Phase.STOPPING and f.workers.planned and not f.workers.hurried and f.view.verdict is None
    return f.registration.create_revision is None and (f.phase in (Phase.JOINING, Phase.RUNNING) or saves)


def _session(f: AgentState) -> None:
    if (
        _to_register(f)
        and f.view.revision > 0
        and f.registration.lease is None
        and not f.registration.granting
        and f.now >= f.registration.grant_again_at
    ):
        f.registration.granting = True
        f.act(OpenSession(f.spec.lease_ttl_s))


def _view_is_stale(f: AgentState) -> bool:
    return f.view.revision < f.store.floor or f.store.listing < f.store.listing_wanted or _awaits_winner(f)


def _awaits_winner(f: AgentState) -> bool:
    """Tell whether this node came second with its registration and has not seen yet what came first.

    Spec and incarnation are written together, and their watches may tell them one after the other.
    """
    half = (f.view.spec is None) != (f.view.incarnation is None)
    return (
        f.registration.outdated is not None
        and f.store.listing == f.registration.outdated[1]
        and (f.store.looks == f.registration.outdated[0] or half)
    )


def _refresh_view(f: AgentState) -> None:
    """List again when an answer was lost or disagreed, and when the watch does not show what was written."""
    if not _view_is_stale(f):
        f.store.behind_since = None
    elif f.store.behind_since is None:
        f.store.behind_since = f.now
    elif f.now >= f.store.behind_since + _patience_s(f):
        f.store.relist_wanted = True
    if f.store.relist_wanted and f.store.relist_asked != f.store.listing:
        f.store.relist_asked = f.store.listing
        f.act(Relist())


def _patience_s(f: AgentState) -> float:
    """How long this agent waits for its watch; each another time, so that not all list in one instant."""
    return f.limits.watch_patience_s * (1 + zlib.crc32(f.me.node.encode()) % 1024 / 1024)


def _send(f: AgentState, transaction: Transaction) -> None:
    f.store.inflight = transaction
    f.store.sent_at = (f.store.looks, f.store.listing)
    f.act(SendTransaction(transaction))


def _write(f: AgentState) -> None:
    """Send the most urgent transaction that is this node's own."""
    if f.view.revision == 0:
        return
    wanted = f.workers.outcome_wanted
    readable = f.view.incarnation is not None  # Nobody knows otherwise whether this store is that of the workers.
    says = wanted is not None and (wanted != f.workers.outcome_written or f.now >= _record_again_at(f))
    if wanted is not None and says and not f.store.replaced and readable:
        _send(f, record_outcome(f.keys, f.view, f.me.node, *wanted))
    elif f.phase is Phase.LEAVING and f.registration.create_revision is not None and not f.leaving.deregistered:
        _send(f, deregister(f.keys, f.me.node, f.registration.create_revision))
    elif f.registration.lease is not None and _to_register(f):
        _join(f)
    elif (
        f.leaving.drain is not None
        and not f.leaving.announced
        and f.registration.create_revision is not None
        and f.phase is Phase.RUNNING
    ):
        _send(
            f,
            update_member(
                f.keys, f.view, f.me.node, f.registration.create_revision, _draining(f), f.registration.lease or 0
            ),
        )


def _draining(f: AgentState) -> Member:
    """This node as it registers when it is told to leave."""
    reason = f.leaving.drain.reason if f.leaving.drain is not None else ""
    return msgspec.structs.replace(f.me.member, state=MemberState.DRAINING, drain_reason=reason)


def _record_again_at(f: AgentState) -> float:
    """When this node says once more how its workers ended; never, unless others wait for that word."""
    generation, wanted = f.generation, f.workers.outcome_wanted
    waits = f.phase in (Phase.DONE, Phase.GATED) and f.registration.create_revision is not None
    if not waits or generation is None or wanted is None or wanted != f.workers.outcome_written or not wanted[1].over:
        return float("inf")
    before = generation.before.g if generation.before is not None else 0
    return f.workers.recorded_at + f.workers.record_again_s if wanted[0] in (generation.g, before) else float("inf")


def _join(f: AgentState) -> None:
    if f.store.replaced:
        return
    f.registration.attempts += 1
    incarnation = f"{f.me.incarnation}-{f.registration.attempts}"
    leaves = f.leaving.drain is not None and f.phase is Phase.STOPPING
    plan = join(
        f.keys,
        f.view,
        replace(f.me, member=_draining(f)) if leaves else f.me,
        incarnation,
        f.registration.lease or 0,
        f.registration.members_exist,
        again=f.may_run_again,
        fresh=f.registration.joined_at is None,
    )
    for line in (*plan.lines, *plan.warnings):
        if line not in f.registration.reported_lines:
            f.registration.reported_lines = (*f.registration.reported_lines, line)
            f.act(LogLine(line, warn=line in plan.warnings))
    if plan.refusal:
        if f.phase is Phase.JOINING:  # Who has workers tries again: what cannot be read may be put right meanwhile.
            f.registration.refusal = plan.refusal
    elif plan.transaction is not None:
        if f.registration.prepared:  # A node that is in a generation starts its workers at once.
            _send(f, plan.transaction if f.workers.gone else unless_superseded(f.keys, f.view, plan.transaction))
    elif f.succession.older_asked is None and f.now >= f.registration.lookup_again_at:
        f.registration.lookup_again_at = f.now + ASK_AGAIN_S
        f.succession.older_asked = 0
        f.act(FindPredecessor(0))


def _revoke_dead(f: AgentState) -> None:
    """The proposer ends the lease of each death that is proven, so that everybody sees it at once."""
    if not f.view.complete or not f.succession.leads or f.registration.create_revision is None:
        return
    if not (f.memory.gone or f.memory.dead):
        return
    for node, stored in f.view.members.items():
        proven = (node, stored.create_revision) in f.memory.gone or node in f.memory.dead
        if proven and stored.lease and stored.lease not in f.succession.revoked:
            f.succession.revoked |= {stored.lease}
            f.act(RevokeLease(stored.lease))


def _present(f: AgentState, node: str) -> bool:
    """Tell whether a node before this one in line can propose: it is registered, alive, and reaches the store."""
    stored = f.view.members.get(node)
    if stored is None or vouching.should_take_over(f, node):
        return False
    return (node, stored.create_revision) not in f.memory.gone and node not in f.memory.dead


def _follow_predecessor(f: AgentState) -> None:
    """Follow the member before this one in line; whoever has nobody before it follows everything and proposes."""
    want = _place_in_line(f) if f.registration.create_revision is not None else (False, None)
    if want is not None and want != f.succession.following:
        f.succession.following = want
        f.succession.decision = None
        if want == (True, None):  # Who was away when it proposed the last time may have been there since, and go again.
            f.memory = replace(f.memory, absent_since={})
        known, f.succession.older_known = f.succession.older_known, None
        f.act(MirrorKeys(*want, known if known is not None and want == (False, f.succession.older_node) else None))


def _place_in_line(f: AgentState) -> tuple[bool, str | None] | None:
    """(True, None) for the first in line, (False, node) for the others, None while that is being looked up."""
    generation, me = f.generation, f.me.node
    index = generation.index(me) if generation is not None else None
    if generation is not None and generation.g != f.succession.passed_g:
        f.succession.passed, f.succession.passed_g = frozenset(), generation.g
    if f.view.complete:
        nearest = _nearest_before(f, index)
        if nearest is None:
            return (True, None)
        f.succession.passed -= {nearest}
        f.succession.older_node = nearest
        f.succession.older_cursor = min(f.view.members[nearest].create_revision, f.registration.create_revision or 0)
        return (False, nearest)
    followed = f.view.follows
    if generation is not None and index is not None:
        if followed is not None and not _present(f, followed):
            f.succession.passed |= {followed}
        for place in reversed(generation.members[:index]):
            if place.node not in f.succession.passed:
                return (False, place.node)
        return (True, None)
    if f.succession.older_cursor is None:
        f.succession.older_cursor, f.succession.older_node = f.registration.create_revision, None
    elif (
        f.succession.older_node is not None
        and followed == f.succession.older_node
        and not _is_valid_predecessor(f, followed)
    ):
        f.succession.older_node = None
    if f.succession.older_node is not None:
        return (False, f.succession.older_node)
    if f.succession.older_cursor == 0:
        return (True, None)
    if f.store.inflight is not None and f.store.inflight.kind == "register":
        return None  # The watch came before the answer, which knows who.
    if (
        f.succession.older_asked is None
        and f.succession.older_cursor is not None
        and f.now >= f.succession.older_again_at
    ):
        f.succession.older_asked = f.succession.older_cursor
        f.act(FindPredecessor(f.succession.older_cursor))
    return None


def _is_valid_predecessor(f: AgentState, node: str) -> bool:
    """Tell whether the node that a spare follows is there, and still before it in line.

    Members of the generation always are; another spare may have registered again, and is younger then.
    """
    stored = f.view.members.get(node)
    if stored is None or not _present(f, node):
        return False
    inside = f.generation is not None and f.generation.index(node) is not None
    return inside or stored.create_revision < (f.registration.create_revision or 0)


def _nearest_before(f: AgentState, index: int | None) -> str | None:
    """The nearest present node before this one, from a complete view: members by M_id, then spares by age."""
    generation = f.generation
    members = [place.node for place in generation.members] if generation is not None else []
    if index is None:
        registered = f.registration.create_revision or 0
        spares = [
            (stored.create_revision, node)
            for node, stored in f.view.members.items()
            if stored.create_revision < registered and node not in members
        ]
        members = members + [node for _, node in sorted(spares)]
        index = len(members)
    return next((node for node in reversed(members[:index]) if _present(f, node)), None)


def _propose(f: AgentState) -> None:
    if f.registration.create_revision is None or not f.view.complete or not f.succession.leads or f.phase in NO_LEADER:
        f.succession.decision = None
        return
    proposed = f.store.inflight is not None and f.store.inflight.kind in PROPOSALS
    if proposed or f.view.revision < f.store.floor:
        return  # What would be decided now could not be sent, and while a thousand join it takes long.
    if (astray := vouching.nodes_without_store(f)) != f.memory.astray:
        f.memory = replace(f.memory, astray=astray)
    decision, f.memory = decide(f.view, f.memory, f.policy, f.now)
    f.succession.decision = decision
    if isinstance(decision, WaitDecision) or f.store.inflight is not None or _view_is_stale(f):
        return
    f.succession.proposals += 1
    proposal = propose(
        f.keys, f.view, f.me.node, f.registration.create_revision, decision, f.tag, f.wall_at_zero + f.now
    )
    if proposal.compares != f.succession.refused_compares or f.now >= f.succession.propose_again_at:
        _send(f, proposal)  # The same would be refused again at once, and again, as fast as the store can answer.


NO_LEADER = (Phase.JOINING, Phase.LEAVING, Phase.ENDED)
