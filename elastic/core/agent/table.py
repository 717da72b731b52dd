"""One agent's life as tables: the transitions between phases, and the duties in every phase (pure).

This file lists every rule in its order; the guards and effects are in the modules of their subjects:

- `registration`: the lease and this node's key;
- `succession`: which node leads; deciding and proposing;
- `links`: the nodes that are watched and doubted, proofs of death, vouching, silence and eviction;
- `workers`: assignment, start, stop, exits, outcome, run deadline;
- `leaving`: drains, `--join-timeout`, the end of the job, the exit;
- `store`: the mirror, and the one transaction under way.

An event only changes what the agent knows (`events.HANDLERS`). `REPORTS` come next. Then the agent evaluates the rows
of the current phase in order and takes the first whose guard holds, repeatedly until none holds. Then come the
`DUTIES`: requests to the store, the nursery, the links or people that are still missing. The order, the delay and the
number of events therefore do not matter: only the resulting knowledge does.

Phases:

======== ==============================================================================================
joining  not registered, no workers
spare    registered, no workers, not in the newest generation
gated    in the newest generation, old workers gone and recorded, waiting for its start signal
running  workers run
stopping workers are being stopped
done     workers are gone, their outcome is recorded or being recorded
leaving  deleting its key
ended    nothing more happens
======== ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic.core.agent import leaving, registration, store, succession
from elastic.core.agent.links import doubt, eviction, inbound, silence, vouching, watch
from elastic.core.agent.state import AgentState, Phase
from elastic.core.agent.workers import assignment, cluster_spec, exits, outcome, stop

Guard = Callable[[AgentState], bool]
Effect = Callable[[AgentState], None]
Time = Callable[[AgentState], float]


def never(agent: AgentState) -> float:
    """No time alone makes a rule hold; only an event does."""
    return float("inf")


def always(agent: AgentState) -> bool:
    """For a duty whose effect checks on its own whether there is something to do."""
    return True


def no_effect(agent: AgentState) -> None:
    """For a row that only changes the phase."""


@dataclass(frozen=True, slots=True)
class Row:
    """In `phase`, if `guard` holds, do `effect` and enter phase `to`. The guard may become true at the time `at`."""

    name: str
    phase: Phase
    guard: Guard
    effect: Effect
    to: Phase
    at: Time = never


@dataclass(frozen=True, slots=True)
class Duty:
    """In any phase but the last, do `effect` if the guard `due` holds. It may become true at the time `at`."""

    name: str
    due: Guard
    effect: Effect
    at: Time = never


JOINING, SPARE, GATED, RUNNING = Phase.JOINING, Phase.SPARE, Phase.GATED, Phase.RUNNING
STOPPING, DONE, LEAVING, ENDED = Phase.STOPPING, Phase.DONE, Phase.LEAVING, Phase.ENDED

TABLE: tuple[Row, ...] = (
    Row("joining: the job has ended", JOINING, leaving.job_ended, leaving.report_verdict, ENDED),
    Row("joining: refused", JOINING, registration.is_refused, registration.report_refusal, ENDED),
    Row("joining: drain", JOINING, leaving.drain_recorded, leaving.leave_drained, ENDED, leaving.give_up_drained_at),
    Row("joining: gave up", JOINING, leaving.timed_out, leaving.leave_by_timeout, ENDED, leaving.timeout_at),
    Row("joining: registered", JOINING, registration.is_registered, registration.report_joined, SPARE),
    Row("spare: verdict", SPARE, leaving.job_ended, leaving.report_verdict, LEAVING),
    Row("spare: drain", SPARE, leaving.drains, leaving.leave_drained, LEAVING),
    Row("spare: registration lost", SPARE, registration.is_unregistered, no_effect, JOINING),
    Row("spare: chosen", SPARE, assignment.is_chosen, assignment.take_target, GATED),
    Row("spare: gave up", SPARE, leaving.timed_out, leaving.leave_by_timeout, LEAVING, leaving.timeout_at),
    Row("gated: verdict", GATED, leaving.job_ended, leaving.report_verdict, LEAVING),
    Row("gated: drain", GATED, leaving.drains, leaving.leave_drained, LEAVING),
    Row("gated: registration lost", GATED, registration.is_unregistered, no_effect, JOINING),
    Row("gated: passed over", GATED, assignment.is_passed_over, no_effect, SPARE),
    Row("gated: newer generation", GATED, assignment.has_newer_target, assignment.take_target, GATED),
    Row("gated: go", GATED, assignment.may_start, assignment.start_workers, RUNNING),
    Row("gated: gave up", GATED, leaving.timed_out, leaving.leave_by_timeout, LEAVING, leaving.timeout_at),
    Row("running: right ended", RUNNING, stop.is_overdue, stop.stop_overdue, STOPPING, stop.overdue_at),
    Row("running: failed", RUNNING, exits.have_failed, stop.stop_failed, STOPPING),
    Row("running: ok", RUNNING, exits.all_ok, outcome.finish, DONE),
    Row("running: only servers left", RUNNING, cluster_spec.only_servers_left, outcome.record_done, RUNNING),
    Row("running: superseded", RUNNING, stop.is_superseded, stop.stop_superseded, STOPPING),
    Row("running: verdict", RUNNING, leaving.job_ended, stop.stop_ended, STOPPING),
    Row("running: killed", RUNNING, exits.are_gone, outcome.finish_killed, DONE),
    Row("running: drain unheard", RUNNING, leaving.unanswered, leaving.stop_drained, STOPPING, leaving.unanswered_at),
    Row("stopping: out of time", STOPPING, leaving.out_of_time, leaving.stop_out_of_time, STOPPING, leaving.kill_at),
    Row("stopping: a loss", STOPPING, stop.must_hurry, stop.stop_faster, STOPPING),
    Row("stopping: failed", STOPPING, stop.failed_in_plan, stop.stop_failed, STOPPING),
    Row("stopping: gone", STOPPING, exits.are_gone, outcome.finish, DONE),
    Row("done: verdict", DONE, leaving.job_ended, leaving.report_verdict, LEAVING),
    Row("done: drained", DONE, leaving.drain_recorded, leaving.leave_drained, LEAVING, leaving.give_up_drained_at),
    Row("done: registration lost", DONE, registration.is_unregistered, no_effect, JOINING),
    Row("done: chosen", DONE, assignment.is_chosen, assignment.take_target, GATED),
    Row("done: passed over", DONE, assignment.is_passed_over, no_effect, SPARE),
    Row("leaving: left", LEAVING, leaving.has_left, leaving.exit_agent, ENDED, leaving.give_up_at),
)  # fmt: skip
"""Every transition. Rows of one phase are evaluated from top to bottom."""

ROWS = {phase: tuple(row for row in TABLE if row.phase is phase) for phase in Phase}

REPORTS: tuple[Duty, ...] = (
    Duty("say why a generation failed", assignment.failure_is_news, assignment.report_failure),
    Duty("report why a cluster spec was revised", cluster_spec.revision_is_news, cluster_spec.report_revision),
    Duty("pass the revision to the workers", cluster_spec.cluster_spec_is_old, cluster_spec.publish_cluster_spec),
    Duty("a generation runs", leaving.generation_runs, leaving.restart_timeout),
    Duty("hold", vouching.may_hold, vouching.hold),
)
"""Duties before the rows, in this order, because a row may end the situation that they report."""

EXTEND_DEADLINE = Duty("extend the run deadline", stop.may_run_longer, stop.extend_deadline)

DUTIES: tuple[Duty, ...] = (
    Duty("adopt np", registration.np_is_open, registration.adopt_np),
    Duty("say why it is a spare", assignment.is_new_spare, assignment.report_spare),
    Duty("record what never started", outcome.never_started, outcome.record_never_started),
    Duty("record what was given up", outcome.leaves_unstarted, outcome.record_leaves_unstarted),
    EXTEND_DEADLINE,
    Duty("note a vacancy", always, succession.note_vacancy),
    Duty("mirror what the role needs", succession.mirrors_too_much_or_little, succession.change_mirror),
    Duty("open a session", registration.needs_lease, registration.open_session),
    Duty("keep up with the store", always, store.keep_up, store.late_at),
    Duty("list again", store.needs_listing, store.list_again),
    Duty("record the outcome", outcome.may_record, outcome.record, outcome.record_again_at),
    Duty("deregister", leaving.may_deregister, leaving.delete_key),
    Duty("register", registration.may_register, registration.register, registration.register_again_at),
    Duty("take the lead", succession.may_take_lead, succession.send_take_lead, succession.lead_at),
    Duty("announce the drain", leaving.may_announce, leaving.announce),
    Duty("evict a silent member", eviction.may_evict, eviction.send_eviction),
    Duty("drop the decision", succession.resigns, succession.drop_decision),
    Duty("decide", succession.may_decide, succession.make_decision, succession.waits_until),
    Duty("propose", succession.may_propose, succession.make_proposal, succession.propose_again_at),
    Duty("revoke leases of the dead", succession.may_revoke, succession.revoke_dead),
    Duty("watch", watch.needs_watch, watch.watch),
    Duty("doubt the watched", doubt.changes, doubt.change),
    Duty("send heartbeats", silence.changes_heartbeats, silence.set_heartbeats),
    Duty("try silent nodes", silence.must_try, silence.try_suspects, silence.try_at),
    Duty("ask for a vouch", vouching.needs_vouch, vouching.ask_vouch, vouching.ask_vouch_at),
    Duty("check inbound links", inbound.is_due, inbound.check, inbound.check_at),
)
"""Duties after the rows, in this order. A transaction that one of them sends makes those below wait for its answer."""


def _times(phase: Phase) -> tuple[Time, ...]:
    rules: tuple[Row | Duty, ...] = (*ROWS[phase], *DUTIES)
    return tuple(rule.at for rule in rules if rule.at is not never)


TIMES: dict[Phase, tuple[Time, ...]] = {phase: _times(phase) for phase in Phase} | {ENDED: ()}
"""The times at which a rule of each phase may become true without an event."""
