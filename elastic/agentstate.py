"""One agent's life as a table: which phase follows which, when, and what is done on the way (pure).

The agent is a set of facts. An event changes facts and nothing else (`elastic.agentabsorb`). Then the rows of the
current phase are asked in order; the first whose guard holds is taken, again and again until none holds. Then the
duties are looked at: what should be asked of the store and has not been (`elastic.agentduties`). So it does not matter
in which order, how late or how often events come: only what is known counts.

Phases:

======== ==============================================================================================
joining  not registered, no workers
spare    registered, no workers, not in the newest generation
gated    in the newest generation, old workers gone and recorded, waiting for the go
running  workers of `workers_g` run
stopping workers of `workers_g` are being stopped
done     workers of `workers_g` are gone, their outcome is recorded or being recorded
leaving  taking back the registration
ended    nothing more happens
======== ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic.agentabsorb import absorb
from elastic.agentduties import announce, keep_right, nothing_due, perform, wake
from elastic.agentevents import (
    Action,
    CloseSession,
    Event,
    Exit,
    Refreshed,
    ReportVerdict,
    Say,
    StartWorkers,
    StopWorkers,
)
from elastic.agentfacts import Facts, Phase
from elastic.model import Ended, Generation, Outcome, Place, Role, Status
from elastic.naming import failed_words, process_name
from elastic.seatwords import seats_in_words

STEPS_MAX = 12
"""No event moves an agent through more rows than this; more would be a loop in the table."""
DRAIN_PATIENCE_S = 5.0
"""A draining node whose job does not react stops its workers by itself after this time."""
RECORD_PATIENCE_S = 5.0
"""A leaving node tries for this long to record its outcome and to take back its registration."""

ENDED = "because the job has ended"

Guard = Callable[[Facts], bool]
Effect = Callable[[Facts], None]


@dataclass(frozen=True, slots=True)
class Row:
    """In `phase`, if `guard` holds, do `effect` and go to `to`."""

    name: str
    phase: Phase
    guard: Guard
    effect: Effect
    to: Phase


class AgentCore:
    """The whole behaviour of an agent: `handle(event, now)` gives the actions, in order.

    `wake_at` is the time at which `Tick` is wanted. `taken` lists the rows that the last event took.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.taken: list[str] = []
        wake(facts, DRAIN_PATIENCE_S, RECORD_PATIENCE_S)  # Perhaps nothing ever happens.

    @property
    def phase(self) -> Phase:
        """Where the agent is in its table."""
        return self.facts.phase

    @property
    def wake_at(self) -> float | None:
        """When to call again with `Tick`, None if nothing is being waited for."""
        return self.facts.wake_at

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event and say what to do. `now`: this node's monotonic clock, seconds; it never runs back."""
        facts = self.facts
        facts.now = max(now, facts.now)
        facts.actions = []
        self.taken = []
        quiet = isinstance(event, Refreshed) and nothing_due(facts)
        absorb(facts, event)
        if quiet and not facts.relist_wanted:  # Most events are these, in a job that just trains.
            keep_right(facts)
            wake(facts, DRAIN_PATIENCE_S, RECORD_PATIENCE_S)
            return facts.actions
        facts.wake_at = None
        announce(facts)
        self._walk()
        if facts.phase is not Phase.ENDED:
            perform(facts)
            if facts.refusal:
                self._walk()
            wake(facts, DRAIN_PATIENCE_S, RECORD_PATIENCE_S)
        return facts.actions

    def _walk(self) -> None:
        """Take rows until none holds."""
        facts = self.facts
        for _ in range(STEPS_MAX):
            for row in ROWS[facts.phase]:
                if row.guard(facts):
                    break
            else:
                return
            row.effect(facts)
            facts.phase = row.to
            facts.entered_at = facts.now
            self.taken.append(row.name)
        raise AssertionError(f"the table loops: {self.taken}")


# --- guards -------------------------------------------------------------------------------------------------------


def _verdict(f: Facts) -> bool:
    """A verdict stands, and not the one that this node's registration replaced."""
    verdict = f.view.verdict
    return verdict is not None and not f.may_run_again and verdict.mod_revision > (f.registered or 0)


def _lost_registration(f: Facts) -> bool:
    return f.registered is None


def _registered(f: Facts) -> bool:
    return f.registered is not None


def _refused(f: Facts) -> bool:
    return bool(f.refusal)


def _drain(f: Facts) -> bool:
    return f.drain is not None


def _gave_up(f: Facts) -> bool:
    return f.limits.elastic_timeout_s is not None and f.now >= f.idle_since + f.limits.elastic_timeout_s


def _chosen(f: Facts) -> bool:
    return f.place is not None and f.stamp > f.finished


def _passed_over(f: Facts) -> bool:
    return f.place is None


def _newer_target(f: Facts) -> bool:
    return f.generation is not None and f.stamp != f.target


def _go(f: Facts) -> bool:
    return (
        f.generation is not None
        and f.view.incarnation is not None
        and f.view.go is not None
        and f.view.go.value.g == f.generation.g
        and f.stamp == f.target
        and f.now < f.right.until()
    )


def _overdue(f: Facts) -> bool:
    return f.now >= f.right.until()


def _superseded(f: Facts) -> bool:
    if f.another_store:
        return True
    generation = f.generation
    if generation is None or generation.g < f.workers_g:
        return False
    return generation.g > f.workers_g or f.stamp != (f.workers_g, f.workers_since)


def _failed(f: Facts) -> bool:
    return any(worker.code != 0 for worker in f.own_exits)


def _all_ok(f: Facts) -> bool:
    return f.workers_gone and not _failed(f) and len(f.own_exits) == (len(f.seats) or f.me.member.slots)


def _workers_done(f: Facts) -> bool:
    """Every worker of a node that has servers, too, ended well."""
    wanted = sum(seat.role is not Role.SERVER for seat in f.seats)
    done = sum(worker.code == 0 and worker.role is not Role.SERVER for worker in f.own_exits)
    return 0 < wanted == done and not _failed(f)


def _only_servers_left(f: Facts) -> bool:
    start = (f.workers_g, f.workers_since)
    said = f.outcome_wanted is not None and (f.outcome_wanted[0], f.outcome_wanted[1].since) == start
    return _workers_done(f) and not said and not f.workers_gone


def _vanished(f: Facts) -> bool:
    return f.workers_gone


def _drain_unheard(f: Facts) -> bool:
    return f.drain is not None and f.now >= f.drain.unheard_at(DRAIN_PATIENCE_S)


def _out_of_time(f: Facts) -> bool:
    """The workers have had the time that the drain's deadline leaves them, and some are still there."""
    return f.drain is not None and f.now >= f.drain.workers_until and not f.workers_gone and not f.cut_short


def _unplanned_now(f: Facts) -> bool:
    """What workers are stopped for is no planned change any more.

    A loss or a failure came meanwhile, an operator does not wait any longer, or the others have gone on and meet nobody
    of this world again.
    """
    generation, go = f.generation, f.view.go
    if f.hurried or f.workers_gone:
        return False
    if _stopped_now(f):
        return True
    if generation is None:
        return False
    went = go is not None and go.value.g > f.workers_g
    return went or (generation.g > f.workers_g + 1 and not generation.planned)


def _stopped_now(f: Facts) -> bool:
    """An operator has ended the job without waiting for what the workers save."""
    return _verdict(f) and f.view.verdict is not None and f.view.verdict.value.status is Status.STOPPED


def _failed_in_plan(f: Facts) -> bool:
    """A worker failed while all were asked to leave for a planned change: what was planned cannot be done."""
    return f.planned and not f.hurried and not f.seats and not f.workers_gone and _failed(f)


def _workers_gone(f: Facts) -> bool:
    return f.workers_gone


def _drain_recorded(f: Facts) -> bool:
    if f.drain is None:
        return False
    return f.outcome_wanted == f.outcome_written or f.now >= f.entered_at + RECORD_PATIENCE_S


def _left(f: Facts) -> bool:
    recorded = f.outcome_wanted == f.outcome_written
    return (recorded and (f.left or f.registered is None)) or f.now >= f.entered_at + RECORD_PATIENCE_S


# --- effects ------------------------------------------------------------------------------------------------------


def _nothing(f: Facts) -> None:
    pass


def _say_verdict(f: Facts) -> None:
    assert f.view.verdict is not None
    verdict = f.view.verdict.value
    f.act(ReportVerdict(verdict, late=f.joined_at is None))
    f.exit_code = 1 if verdict.status is Status.FAILED else 0
    if f.phase is Phase.JOINING:
        _close(f)


def _say_refusal(f: Facts) -> None:
    f.act(Say(f.refusal, warn=True))
    f.exit_code = 3
    _close(f)


def _leave_as_asked(f: Facts) -> None:
    assert f.drain is not None
    f.exit_code = f.drain.exit_code
    if f.phase is Phase.JOINING:
        comes = f.joined_at is None and f.drain.deadline is not None
        f.act(Say(f"{f.drain.reason}: {'this node does not join' if comes else 'leaving'}, the job stays open"))
        _close(f)


def _leave_by_timeout(f: Facts) -> None:
    words = f"no world came together in {f.limits.elastic_timeout_s:g} s (--elastic_timeout); leaving"
    f.act(Say(words, warn=True))
    f.exit_code = 4
    if f.phase is Phase.JOINING:
        _close(f)


def _close(f: Facts) -> None:
    if f.lease is not None:
        f.act(CloseSession(f.lease))
    f.act(Exit(f.exit_code))


def _ended(f: Facts) -> None:
    drain = f.drain
    if drain is not None and f.exit_code == drain.exit_code and not _verdict(f):
        named = drain.deadline is not None or drain.exit_code < 128  # Of a signal its sender knows.
        because = f" ({drain.reason})" if named else ""
        f.act(Say(f"left{because}; the job stays open"))
    _close(f)


def _say_joined(f: Facts) -> None:
    f.act(Say("registered again" if f.joined_at is not None else f"joined the job as {f.me.node}"))
    f.joined_at = f.now


def _target(f: Facts) -> None:
    generation = f.generation
    assert generation is not None
    f.target = f.stamp
    f.right = f.right.void()
    m_id = generation.index(f.me.node)
    assert m_id is not None
    if generation.members[m_id].seats:
        _say_seats(f, generation, generation.members[m_id])
        return
    first = m_id * generation.slots
    ranks = f"rank {first}" if generation.slots == 1 else f"ranks {first}-{first + generation.slots - 1}"
    count, each = len(generation.members), generation.slots
    f.act(
        Say(
            f"generation {generation.g}: {count} node{'' if count == 1 else 's'}"
            f"{f' of {each} workers' if each > 1 else ''}, world size {generation.world_size}, "
            f"this is M_id {m_id} ({ranks}): {generation.reason}"
        )
    )


def _say_seats(f: Facts, generation: Generation, place: Place) -> None:
    count = len(generation.members)
    revision = f", revision {generation.rev}" if generation.rev else ""
    f.act(
        Say(
            f"generation {generation.g}{revision}: {count} node{'' if count == 1 else 's'}, this one has "
            f"{seats_in_words(place)}: {generation.reason}"
        )
    )


def _start(f: Facts) -> None:
    generation, go = f.generation, f.view.go
    assert generation is not None
    assert go is not None
    assert f.view.incarnation is not None
    assert f.view.spec is not None
    m_id = generation.index(f.me.node)
    assert m_id is not None
    f.workers_g, f.workers_since = f.target
    f.seats = generation.members[m_id].seats
    f.roster_rev = generation.rev
    f.workers_gone = False
    f.own_exits, f.also_exits = [], []
    f.forced = f.hurried = f.planned = f.hung = f.cut_short = False
    f.unreached = ()
    f.step = -1
    f.started_at = f.now
    f.run_until = f.right.until()
    f.act(StartWorkers(generation, go.value, m_id, f.view.incarnation.value, f.view.spec.value.restarts_max))


def _stop_overdue(f: Facts) -> None:
    f.forced = True
    why = "the lease was not refreshed in time, or its key is gone"
    f.act(Say(f"the right to run ended ({why}): stopping this node's workers"))
    f.act(StopWorkers(f.workers_g, 0.0, "because the right to run ended"))


def _stop_superseded(f: Facts) -> None:
    generation = f.generation
    if generation is None or f.another_store:
        f.act(Say("the store is another one, or came back empty: stopping the workers, the job forms again"))
        f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s, "because the store is another one than before"))
        return
    if generation.g == f.workers_g:  # A revision without this node: it was asked to leave, or was thought lost.
        planned = generation.index(f.me.node) is not None
    else:
        planned = generation.planned and generation.before is not None and generation.before.g == f.workers_g
    f.planned, f.hurried = planned, not planned
    f.act(Say(f"{generation.reason}: stopping this node's workers"))
    grace_s = _grace_s(f) if planned else f.limits.loss_grace_s
    f.act(StopWorkers(f.workers_g, grace_s, _stopped(generation), planned=planned))


def _grace_s(f: Facts) -> float:
    """How long workers have after SIGTERM when nothing is broken."""
    return f.limits.grace_s if f.drain is None else max(min(f.limits.grace_s, f.drain.workers_until - f.now), 0.0)


def _stopped(generation: Generation) -> str:
    """Why a generation stopped the workers of the one before, in words that go after "stopped"."""
    return f"{'for a planned change:' if generation.planned else 'because'} {generation.reason}"


def _stop_faster(f: Facts) -> None:
    assert f.generation is not None or _stopped_now(f)
    f.hurried = True
    why = ENDED if f.generation is None or _stopped_now(f) else _stopped(f.generation)
    f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s, why))


def _stop_verdict(f: Facts) -> None:
    f.hurried = _stopped_now(f)
    f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s if f.hurried else f.limits.grace_s, ENDED))


def _stop_failed(f: Facts) -> None:
    failed = [worker for worker in f.own_exits if worker.code != 0]
    worker = failed[0]
    verb = "hangs" if f.hung else "ended"
    f.hurried = True
    f.act(Say(f"{process_name(worker.role, worker.rank)} {verb}: {worker.words}; stopping this node's workers"))
    f.want_outcome(f.workers_g, _outcome(f, over=False))
    why = f"because {failed_words(failed, f.me.member.host)}"
    f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s, why))


def _say_workers_done(f: Facts) -> None:
    f.want_outcome(f.workers_g, _outcome(f, over=False))


def _stop_drained(f: Facts) -> None:
    f.forced = f.planned = True
    assert f.drain is not None
    if f.now < f.drain.workers_until:
        f.act(Say("nobody took notice of the drain: stopping this node's workers"))
    f.act(StopWorkers(f.workers_g, _grace_s(f), "for a planned change: this node drains", planned=True))


def _stop_out_of_time(f: Facts) -> None:
    assert f.drain is not None
    f.forced = f.hurried = f.cut_short = True
    f.act(Say(f"no time is left ({f.drain.reason}): ending this node's workers", warn=True))
    f.act(StopWorkers(f.workers_g, 0.0, f"because no time is left: {f.drain.reason}"))


def _finish_killed(f: Facts) -> None:
    f.forced = True
    _finish(f)


def _finish(f: Facts) -> None:
    f.idle_since = f.now
    if f.another_store:
        f.forget_store()
        return
    f.finished = max(f.finished, (f.workers_g, f.workers_since))
    f.want_outcome(f.workers_g, _outcome(f, over=True))


def _outcome(f: Facts, *, over: bool) -> Outcome:
    failed = sorted(
        (worker for worker in f.own_exits if worker.code != 0),
        key=lambda worker: worker.consequence,
    )
    ended = Ended.FAILED if failed else Ended.OK if _all_ok(f) or _workers_done(f) else Ended.STOPPED
    return Outcome(
        ended=ended,
        over=over,
        host=f.me.member.host,
        forced=f.forced and ended is not Ended.OK,  # They ended well before they could be stopped.
        exits=tuple(failed),
        also=tuple(f.also_exits),
        step=f.step,
        since=f.workers_since,
        ran_s=round(f.now - f.started_at, 3),
        unreached=f.unreached,
    )


TABLE: tuple[Row, ...] = (
    Row("joining: the job has ended", Phase.JOINING, _verdict, _say_verdict, Phase.ENDED),
    Row("joining: refused", Phase.JOINING, _refused, _say_refusal, Phase.ENDED),
    Row("joining: drain", Phase.JOINING, _drain_recorded, _leave_as_asked, Phase.ENDED),
    Row("joining: gave up", Phase.JOINING, _gave_up, _leave_by_timeout, Phase.ENDED),
    Row("joining: registered", Phase.JOINING, _registered, _say_joined, Phase.SPARE),
    Row("spare: verdict", Phase.SPARE, _verdict, _say_verdict, Phase.LEAVING),
    Row("spare: drain", Phase.SPARE, _drain, _leave_as_asked, Phase.LEAVING),
    Row("spare: registration lost", Phase.SPARE, _lost_registration, _nothing, Phase.JOINING),
    Row("spare: chosen", Phase.SPARE, _chosen, _target, Phase.GATED),
    Row("spare: gave up", Phase.SPARE, _gave_up, _leave_by_timeout, Phase.LEAVING),
    Row("gated: verdict", Phase.GATED, _verdict, _say_verdict, Phase.LEAVING),
    Row("gated: drain", Phase.GATED, _drain, _leave_as_asked, Phase.LEAVING),
    Row("gated: registration lost", Phase.GATED, _lost_registration, _nothing, Phase.JOINING),
    Row("gated: passed over", Phase.GATED, _passed_over, _nothing, Phase.SPARE),
    Row("gated: newer generation", Phase.GATED, _newer_target, _target, Phase.GATED),
    Row("gated: go", Phase.GATED, _go, _start, Phase.RUNNING),
    Row("gated: gave up", Phase.GATED, _gave_up, _leave_by_timeout, Phase.LEAVING),
    Row("running: right ended", Phase.RUNNING, _overdue, _stop_overdue, Phase.STOPPING),
    Row("running: failed", Phase.RUNNING, _failed, _stop_failed, Phase.STOPPING),
    Row("running: ok", Phase.RUNNING, _all_ok, _finish, Phase.DONE),
    Row("running: only servers left", Phase.RUNNING, _only_servers_left, _say_workers_done, Phase.RUNNING),
    Row("running: superseded", Phase.RUNNING, _superseded, _stop_superseded, Phase.STOPPING),
    Row("running: verdict", Phase.RUNNING, _verdict, _stop_verdict, Phase.STOPPING),
    Row("running: killed", Phase.RUNNING, _vanished, _finish_killed, Phase.DONE),
    Row("running: drain unheard", Phase.RUNNING, _drain_unheard, _stop_drained, Phase.STOPPING),
    Row("stopping: out of time", Phase.STOPPING, _out_of_time, _stop_out_of_time, Phase.STOPPING),
    Row("stopping: a loss", Phase.STOPPING, _unplanned_now, _stop_faster, Phase.STOPPING),
    Row("stopping: failed", Phase.STOPPING, _failed_in_plan, _stop_failed, Phase.STOPPING),
    Row("stopping: gone", Phase.STOPPING, _workers_gone, _finish, Phase.DONE),
    Row("done: verdict", Phase.DONE, _verdict, _say_verdict, Phase.LEAVING),
    Row("done: drained", Phase.DONE, _drain_recorded, _leave_as_asked, Phase.LEAVING),
    Row("done: registration lost", Phase.DONE, _lost_registration, _nothing, Phase.JOINING),
    Row("done: chosen", Phase.DONE, _chosen, _target, Phase.GATED),
    Row("done: passed over", Phase.DONE, _passed_over, _nothing, Phase.SPARE),
    Row("leaving: left", Phase.LEAVING, _left, _ended, Phase.ENDED),
)
"""Every transition there is. Rows of one phase are asked from top to bottom."""

ROWS = {phase: tuple(row for row in TABLE if row.phase is phase) for phase in Phase}
