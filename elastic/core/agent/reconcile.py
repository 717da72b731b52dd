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


def report_changes(agent: AgentState) -> None:
    """Before the rows are asked: tell people about a failure, and hold the right to run while everybody is heard."""
    go = agent.view.go
    if (
        go is not None
        and go.value.cause is not None
        and agent.registration.joined_at is not None
        and (go.value.g, 0) > agent.workers.reported
    ):
        agent.workers.reported = (go.value.g, 0)
        if agent.generation is not None and agent.generation.g == go.value.g:
            agent.act(ReportFailure(go.value.cause, go.value.note))
    _report_revision(agent)
    if go is not None and agent.generation is not None and go.value.g == agent.generation.g:
        agent.leaving.idle_since = agent.now  # A world runs, with this node or without it.
    vouching.extend_while_linked(agent)


def _report_revision(agent: AgentState) -> None:
    """Tell people about a failure that a revision of the roster mends, and those who work about who is in it now."""
    generation = agent.generation
    if generation is None or not generation.rev or agent.registration.joined_at is None:
        return
    if generation.cause is not None and (generation.g, generation.rev) > agent.workers.reported:
        agent.workers.reported = (generation.g, generation.rev)
        agent.act(ReportFailure(generation.cause, ""))
    if generation.g == agent.workers.g and generation.rev > agent.workers.cluster_spec_rev and not agent.workers.gone:
        agent.workers.cluster_spec_rev = generation.rev
        if agent.member is not None and agent.stamp == (agent.workers.g, agent.workers.since):
            agent.act(LogLine(f"revision {generation.rev} of the roster: {generation.reason}"))
            agent.act(PublishClusterSpec(generation))


def reconcile(agent: AgentState) -> None:
    """After the rows: ask for everything that is due."""
    _adopt_np(agent)
    _log_spare(agent)
    _record_never_started(agent)
    extend_deadline(agent)
    _follow_predecessor(agent)
    _session(agent)
    _refresh_view(agent)
    if agent.store.inflight is None and not _view_is_stale(agent):
        _write(agent)
    _propose(agent)
    _revoke_dead(agent)
    links.watch(agent)
    links.ask(agent)
    inbound_link_policy.check(agent)


def next_wake_up(agent: AgentState, drain_patience_s: float, record_patience_s: float) -> None:
    """Work out when this agent has something to do although nothing happens."""
    times: list[float] = []
    if isinstance(agent.succession.decision, WaitDecision) and agent.succession.decision.until is not None:
        times.append(agent.succession.decision.until)
    if agent.phase is Phase.RUNNING:
        times.append(agent.workers.run_deadline.until())
        if agent.leaving.drain is not None:
            times.append(agent.leaving.drain.unheard_at(drain_patience_s))
    if agent.phase is Phase.STOPPING and agent.leaving.drain is not None:
        times.append(agent.leaving.drain.workers_until)
    if agent.phase is Phase.LEAVING or (agent.phase in (Phase.JOINING, Phase.DONE) and agent.leaving.drain is not None):
        times.append(agent.entered_at + record_patience_s)
    if agent.phase in (Phase.JOINING, Phase.SPARE, Phase.GATED) and agent.limits.elastic_timeout_s is not None:
        times.append(agent.leaving.idle_since + agent.limits.elastic_timeout_s)
    idle = agent.store.inflight is None and agent.store.behind_since is None
    if _to_register(agent) and idle:
        times.append(max(agent.registration.grant_again_at, agent.now + ASK_AGAIN_S))
    if agent.store.behind_since is not None:
        times.append(agent.store.behind_since + _patience_s(agent))
    times += [agent.succession.older_again_at, agent.succession.propose_again_at, _record_again_at(agent)]
    times += links.next_wake_up(agent)
    times += inbound_link_policy.next_wake_up(agent)
    later = [time for time in times if agent.now < time < float("inf")]
    agent.wake_at = min(later) if later else None


def _adopt_np(agent: AgentState) -> None:
    """Where the user named no np, remember that the job has no maximum: this node may be the first in an empty etcd."""
    stored = agent.view.spec
    if (
        not agent.me.np_given
        and stored is not None
        and stored.value.np.unlimited
        and stored.value.np != agent.me.spec.np
    ):
        agent.me = replace(agent.me, spec=replace(agent.me.spec, np=stored.value.np))


def _log_spare(agent: AgentState) -> None:
    """Say once for each generation that it goes on without this node, as soon as the view is not older than that.

    Where there is room the node is a spare for a moment only.
    """
    generation = agent.generation
    if (
        agent.phase is not Phase.SPARE
        or generation is None
        or agent.leaving.drain is not None
        or agent.workers.spare_g == generation.g
    ):
        return
    if (
        generation.members
        and generation.index(agent.me.node) is None
        and agent.view.revision >= agent.registration.registered_at_revision
    ):
        agent.workers.spare_g = generation.g
        spec = agent.view.spec.value if agent.view.spec is not None else None
        room = spec is not None and not spec.ips and spec.roles is None and len(generation.members) < spec.np.high
        if _report_quarantined(agent, room=room):
            return
        until = "which joins at the next start" if room else "which takes over when one is lost"
        agent.act(LogLine(f"spare: generation {generation.g} goes on without this node, {until}"))


def _report_quarantined(agent: AgentState, *, room: bool) -> bool:
    """Say to a node why it is a spare, if that is because its host is kept out.

    One that others did not reach stays out where there is `room` for as long as the proposer does not reach it.
    """
    for entry in budget_of(agent.view).hosts:
        until = agent.memory.quarantine_deadlines.get((entry.host, entry.g), agent.now)
        if entry.host == agent.me.member.host and (until > agent.now or (entry.unreachable and room)):
            at = f"{text.clock_time(agent.wall_at_zero + until)} UTC" if until > agent.now else "it can be reached"
            agent.act(
                LogLine(f"kept out until {at}: {quarantine.reason_text(entry)}; it comes back by itself", warn=True)
            )
            return True
    return False


def _record_never_started(agent: AgentState) -> None:
    """Record that this node never started what it was to start: the gate, or the roster, waits for that word."""
    generation = agent.generation
    if generation is None or not agent.workers.gone or agent.store.replaced:
        return
    stopped = Outcome(ended=OutcomeKind.STOPPED, over=True, host=agent.me.member.host)
    before = generation.before
    said = (
        (agent.workers.outcome_wanted[0], agent.workers.outcome_wanted[1].since)
        if agent.workers.outcome_wanted is not None
        else (0, 0)
    )
    last = before.start(agent.me.node) if before is not None else None
    if last is not None and said < last:
        agent.workers.finished = max(agent.workers.finished, last)
        agent.want_outcome(last[0], msgspec.structs.replace(stopped, since=last[1]))
    index = generation.index(agent.me.node)
    if index is not None and generation.members[index].leaving:
        since = generation.members[index].since
        if (generation.g, since) > agent.workers.finished:
            agent.workers.finished = (generation.g, since)
            agent.want_outcome(generation.g, msgspec.structs.replace(stopped, since=since))


def only_extends_deadline(agent: AgentState) -> bool:
    """Tell whether a refresh of the lease changes nothing but how long this node may run.

    No time is up that this agent waits for, it does not wait for its right to start, and nobody before it in line has
    said that it does not reach the store.
    """
    settled = (
        agent.registration.create_revision is not None
        and agent.phase in (Phase.SPARE, Phase.RUNNING)
        and not agent.links.yielding
    )
    return settled and (agent.wake_at is None or agent.now < agent.wake_at)


def extend_deadline(agent: AgentState) -> None:
    """Tell the nursery how long its workers may run, when that is longer than before."""
    if not agent.workers.gone and agent.workers.run_deadline.until() > agent.workers.run_until:
        agent.workers.run_until = agent.workers.run_deadline.until()
        agent.act(ExtendRunDeadline(agent.workers.run_until))


def _to_register(agent: AgentState) -> bool:
    """Tell whether this node is to be registered, and is not.

    Whose workers save before they leave needs its right to run for that. A job that has ended takes nobody.
    """
    saves = (
        agent.phase is Phase.STOPPING
        and agent.workers.planned
        and not agent.workers.hurried
        and agent.view.verdict is None
    )
    return agent.registration.create_revision is None and (agent.phase in (Phase.JOINING, Phase.RUNNING) or saves)


def _session(agent: AgentState) -> None:
    if (
        _to_register(agent)
        and agent.view.revision > 0
        and agent.registration.lease is None
        and not agent.registration.granting
        and agent.now >= agent.registration.grant_again_at
    ):
        agent.registration.granting = True
        agent.act(OpenSession(agent.spec.lease_ttl_s))


def _view_is_stale(agent: AgentState) -> bool:
    return (
        agent.view.revision < agent.store.floor
        or agent.store.listing < agent.store.listing_wanted
        or _awaits_winner(agent)
    )


def _awaits_winner(agent: AgentState) -> bool:
    """Tell whether this node came second with its registration and has not seen yet what came first.

    Spec and incarnation are written together, and their watches may tell them one after the other.
    """
    half = (agent.view.spec is None) != (agent.view.incarnation is None)
    return (
        agent.registration.outdated is not None
        and agent.store.listing == agent.registration.outdated[1]
        and (agent.store.looks == agent.registration.outdated[0] or half)
    )


def _refresh_view(agent: AgentState) -> None:
    """List again when an answer was lost or disagreed, and when the watch does not show what was written."""
    if not _view_is_stale(agent):
        agent.store.behind_since = None
    elif agent.store.behind_since is None:
        agent.store.behind_since = agent.now
    elif agent.now >= agent.store.behind_since + _patience_s(agent):
        agent.store.relist_wanted = True
    if agent.store.relist_wanted and agent.store.relist_asked != agent.store.listing:
        agent.store.relist_asked = agent.store.listing
        agent.act(Relist())


def _patience_s(agent: AgentState) -> float:
    """How long this agent waits for its watch; each another time, so that not all list in one instant."""
    return agent.limits.watch_patience_s * (1 + zlib.crc32(agent.me.node.encode()) % 1024 / 1024)


def _send(agent: AgentState, transaction: Transaction) -> None:
    agent.store.inflight = transaction
    agent.store.sent_at = (agent.store.looks, agent.store.listing)
    agent.act(SendTransaction(transaction))


def _write(agent: AgentState) -> None:
    """Send the most urgent transaction that is this node's own."""
    if agent.view.revision == 0:
        return
    wanted = agent.workers.outcome_wanted
    readable = agent.view.incarnation is not None  # Nobody knows otherwise whether this store is that of the workers.
    says = wanted is not None and (wanted != agent.workers.outcome_written or agent.now >= _record_again_at(agent))
    if wanted is not None and says and not agent.store.replaced and readable:
        _send(agent, record_outcome(agent.keys, agent.view, agent.me.node, *wanted))
    elif (
        agent.phase is Phase.LEAVING
        and agent.registration.create_revision is not None
        and not agent.leaving.deregistered
    ):
        _send(agent, deregister(agent.keys, agent.me.node, agent.registration.create_revision))
    elif agent.registration.lease is not None and _to_register(agent):
        _join(agent)
    elif (
        agent.leaving.drain is not None
        and not agent.leaving.announced
        and agent.registration.create_revision is not None
        and agent.phase is Phase.RUNNING
    ):
        _send(
            agent,
            update_member(
                agent.keys,
                agent.view,
                agent.me.node,
                agent.registration.create_revision,
                _draining(agent),
                agent.registration.lease or 0,
            ),
        )


def _draining(agent: AgentState) -> Member:
    """This node as it registers when it is told to leave."""
    reason = agent.leaving.drain.reason if agent.leaving.drain is not None else ""
    return msgspec.structs.replace(agent.me.member, state=MemberState.DRAINING, drain_reason=reason)


def _record_again_at(agent: AgentState) -> float:
    """When this node says once more how its workers ended; never, unless others wait for that word."""
    generation, wanted = agent.generation, agent.workers.outcome_wanted
    waits = agent.phase in (Phase.DONE, Phase.GATED) and agent.registration.create_revision is not None
    if (
        not waits
        or generation is None
        or wanted is None
        or wanted != agent.workers.outcome_written
        or not wanted[1].over
    ):
        return float("inf")
    before = generation.before.g if generation.before is not None else 0
    return (
        agent.workers.recorded_at + agent.workers.record_again_s
        if wanted[0] in (generation.g, before)
        else float("inf")
    )


def _join(agent: AgentState) -> None:
    if agent.store.replaced:
        return
    agent.registration.attempts += 1
    incarnation = f"{agent.me.incarnation}-{agent.registration.attempts}"
    leaves = agent.leaving.drain is not None and agent.phase is Phase.STOPPING
    plan = join(
        agent.keys,
        agent.view,
        replace(agent.me, member=_draining(agent)) if leaves else agent.me,
        incarnation,
        agent.registration.lease or 0,
        agent.registration.members_exist,
        again=agent.may_run_again,
        fresh=agent.registration.joined_at is None,
    )
    for line in (*plan.lines, *plan.warnings):
        if line not in agent.registration.reported_lines:
            agent.registration.reported_lines = (*agent.registration.reported_lines, line)
            agent.act(LogLine(line, warn=line in plan.warnings))
    if plan.refusal:
        if agent.phase is Phase.JOINING:  # Who has workers tries again: what cannot be read may be put right meanwhile.
            agent.registration.refusal = plan.refusal
    elif plan.transaction is not None:
        if agent.registration.prepared:  # A node that is in a generation starts its workers at once.
            _send(
                agent,
                plan.transaction if agent.workers.gone else unless_superseded(agent.keys, agent.view, plan.transaction),
            )
    elif agent.succession.older_asked is None and agent.now >= agent.registration.lookup_again_at:
        agent.registration.lookup_again_at = agent.now + ASK_AGAIN_S
        agent.succession.older_asked = 0
        agent.act(FindPredecessor(0))


def _revoke_dead(agent: AgentState) -> None:
    """The proposer ends the lease of each death that is proven, so that everybody sees it at once."""
    if not agent.view.complete or not agent.succession.leads or agent.registration.create_revision is None:
        return
    if not (agent.memory.gone or agent.memory.dead):
        return
    for node, stored in agent.view.members.items():
        proven = (node, stored.create_revision) in agent.memory.gone or node in agent.memory.dead
        if proven and stored.lease and stored.lease not in agent.succession.revoked:
            agent.succession.revoked |= {stored.lease}
            agent.act(RevokeLease(stored.lease))


def _present(agent: AgentState, node: str) -> bool:
    """Tell whether a node before this one in line can propose: it is registered, alive, and reaches the store."""
    stored = agent.view.members.get(node)
    if stored is None or vouching.should_take_over(agent, node):
        return False
    return (node, stored.create_revision) not in agent.memory.gone and node not in agent.memory.dead


def _follow_predecessor(agent: AgentState) -> None:
    """Follow the member before this one in line; whoever has nobody before it follows everything and proposes."""
    want = _place_in_line(agent) if agent.registration.create_revision is not None else (False, None)
    if want is not None and want != agent.succession.following:
        agent.succession.following = want
        agent.succession.decision = None
        if want == (True, None):  # Who was away when it proposed the last time may have been there since, and go again.
            agent.memory = replace(agent.memory, absent_since={})
        known, agent.succession.older_known = agent.succession.older_known, None
        agent.act(
            MirrorKeys(*want, known if known is not None and want == (False, agent.succession.older_node) else None)
        )


def _place_in_line(agent: AgentState) -> tuple[bool, str | None] | None:
    """(True, None) for the first in line, (False, node) for the others, None while that is being looked up."""
    generation, me = agent.generation, agent.me.node
    index = generation.index(me) if generation is not None else None
    if generation is not None and generation.g != agent.succession.passed_g:
        agent.succession.passed, agent.succession.passed_g = frozenset(), generation.g
    if agent.view.complete:
        nearest = _nearest_before(agent, index)
        if nearest is None:
            return (True, None)
        agent.succession.passed -= {nearest}
        agent.succession.older_node = nearest
        agent.succession.older_cursor = min(
            agent.view.members[nearest].create_revision, agent.registration.create_revision or 0
        )
        return (False, nearest)
    followed = agent.view.follows
    if generation is not None and index is not None:
        if followed is not None and not _present(agent, followed):
            agent.succession.passed |= {followed}
        for member in reversed(generation.members[:index]):
            if member.node not in agent.succession.passed:
                return (False, member.node)
        return (True, None)
    if agent.succession.older_cursor is None:
        agent.succession.older_cursor, agent.succession.older_node = agent.registration.create_revision, None
    elif (
        agent.succession.older_node is not None
        and followed == agent.succession.older_node
        and not _is_valid_predecessor(agent, followed)
    ):
        agent.succession.older_node = None
    if agent.succession.older_node is not None:
        return (False, agent.succession.older_node)
    if agent.succession.older_cursor == 0:
        return (True, None)
    if agent.store.inflight is not None and agent.store.inflight.kind == "register":
        return None  # The watch came before the answer, which knows who.
    if (
        agent.succession.older_asked is None
        and agent.succession.older_cursor is not None
        and agent.now >= agent.succession.older_again_at
    ):
        agent.succession.older_asked = agent.succession.older_cursor
        agent.act(FindPredecessor(agent.succession.older_cursor))
    return None


def _is_valid_predecessor(agent: AgentState, node: str) -> bool:
    """Tell whether the node that a spare follows is there, and still before it in line.

    Members of the generation always are; another spare may have registered again, and is younger then.
    """
    stored = agent.view.members.get(node)
    if stored is None or not _present(agent, node):
        return False
    inside = agent.generation is not None and agent.generation.index(node) is not None
    return inside or stored.create_revision < (agent.registration.create_revision or 0)


def _nearest_before(agent: AgentState, index: int | None) -> str | None:
    """The nearest present node before this one, from a complete view: members by M_id, then spares by age."""
    generation = agent.generation
    members = [member.node for member in generation.members] if generation is not None else []
    if index is None:
        registered = agent.registration.create_revision or 0
        spares = [
            (stored.create_revision, node)
            for node, stored in agent.view.members.items()
            if stored.create_revision < registered and node not in members
        ]
        members = members + [node for _, node in sorted(spares)]
        index = len(members)
    return next((node for node in reversed(members[:index]) if _present(agent, node)), None)


def _propose(agent: AgentState) -> None:
    if (
        agent.registration.create_revision is None
        or not agent.view.complete
        or not agent.succession.leads
        or agent.phase in NO_LEADER
    ):
        agent.succession.decision = None
        return
    proposed = agent.store.inflight is not None and agent.store.inflight.kind in PROPOSALS
    if proposed or agent.view.revision < agent.store.floor:
        return  # What would be decided now could not be sent, and while a thousand join it takes long.
    if (astray := vouching.nodes_without_store(agent)) != agent.memory.astray:
        agent.memory = replace(agent.memory, astray=astray)
    decision, agent.memory = decide(agent.view, agent.memory, agent.policy, agent.now)
    agent.succession.decision = decision
    if isinstance(decision, WaitDecision) or agent.store.inflight is not None or _view_is_stale(agent):
        return
    agent.succession.proposals += 1
    proposal = propose(
        agent.keys,
        agent.view,
        agent.me.node,
        agent.registration.create_revision,
        decision,
        agent.tag,
        agent.wall_at_zero + agent.now,
    )
    if proposal.compares != agent.succession.refused_compares or agent.now >= agent.succession.propose_again_at:
        _send(agent, proposal)  # The same would be refused again at once, and again, as fast as the store can answer.


NO_LEADER = (Phase.JOINING, Phase.LEAVING, Phase.ENDED)
