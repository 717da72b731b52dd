"""One agent's life as a table: which phase follows which, when, and what is done on the way (pure).

The agent is a set of facts. An event changes facts and nothing else (`elastic.core.agent.apply_event`). Then the rows
of the current phase are asked in order; the first whose guard holds is taken, again and again until none holds. Then
the duties are looked at: what should be asked of the store and has not been (`elastic.core.agent.reconcile`). So it
does not matter in which order, how late or how often events come: only what is known counts.

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

from elastic.core.agent import effects, guards, worker_stop
from elastic.core.agent.actions import Action
from elastic.core.agent.apply_event import apply_event
from elastic.core.agent.events import Event, LeaseRefreshed
from elastic.core.agent.reconcile import extend_deadline, next_wake_up, only_extends_deadline, reconcile, report_changes
from elastic.core.agent.state import AgentState, Phase

STEPS_MAX = 12
"""No event moves an agent through more rows than this; more would be a loop in the table."""

Guard = Callable[[AgentState], bool]
Effect = Callable[[AgentState], None]


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

    def __init__(self, facts: AgentState) -> None:
        self.facts = facts
        self.taken: list[str] = []
        next_wake_up(facts, guards.DRAIN_PATIENCE_S, guards.RECORD_PATIENCE_S)  # Perhaps nothing ever happens.

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
        if facts.phase is Phase.ENDED:
            return []
        quiet = isinstance(event, LeaseRefreshed) and only_extends_deadline(facts)
        apply_event(facts, event)
        if quiet and not facts.store.relist_wanted:  # Most events are these, in a job that just trains.
            extend_deadline(facts)
            next_wake_up(facts, guards.DRAIN_PATIENCE_S, guards.RECORD_PATIENCE_S)
            return facts.actions
        facts.wake_at = None
        report_changes(facts)
        self._walk()
        if self.phase is not Phase.ENDED:
            reconcile(facts)
            if facts.registration.refusal:
                self._walk()
            next_wake_up(facts, guards.DRAIN_PATIENCE_S, guards.RECORD_PATIENCE_S)
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


TABLE: tuple[Row, ...] = (
    Row("joining: the job has ended", Phase.JOINING, guards.verdict, effects.report_verdict, Phase.ENDED),
    Row("joining: refused", Phase.JOINING, guards.refused, effects.report_rejection, Phase.ENDED),
    Row("joining: drain", Phase.JOINING, guards.drain_recorded, effects.leave_drained, Phase.ENDED),
    Row("joining: gave up", Phase.JOINING, guards.timed_out, effects.leave_by_timeout, Phase.ENDED),
    Row("joining: registered", Phase.JOINING, guards.registered, effects.report_joined, Phase.SPARE),
    Row("spare: verdict", Phase.SPARE, guards.verdict, effects.report_verdict, Phase.LEAVING),
    Row("spare: drain", Phase.SPARE, guards.drain, effects.leave_drained, Phase.LEAVING),
    Row("spare: registration lost", Phase.SPARE, guards.lost_registration, effects.no_effect, Phase.JOINING),
    Row("spare: chosen", Phase.SPARE, guards.chosen, effects.target, Phase.GATED),
    Row("spare: gave up", Phase.SPARE, guards.timed_out, effects.leave_by_timeout, Phase.LEAVING),
    Row("gated: verdict", Phase.GATED, guards.verdict, effects.report_verdict, Phase.LEAVING),
    Row("gated: drain", Phase.GATED, guards.drain, effects.leave_drained, Phase.LEAVING),
    Row("gated: registration lost", Phase.GATED, guards.lost_registration, effects.no_effect, Phase.JOINING),
    Row("gated: passed over", Phase.GATED, guards.passed_over, effects.no_effect, Phase.SPARE),
    Row("gated: newer generation", Phase.GATED, guards.newer_target, effects.target, Phase.GATED),
    Row("gated: go", Phase.GATED, guards.go, effects.start, Phase.RUNNING),
    Row("gated: gave up", Phase.GATED, guards.timed_out, effects.leave_by_timeout, Phase.LEAVING),
    Row("running: right ended", Phase.RUNNING, guards.overdue, worker_stop.stop_overdue, Phase.STOPPING),
    Row("running: failed", Phase.RUNNING, guards.failed, worker_stop.stop_failed, Phase.STOPPING),
    Row("running: ok", Phase.RUNNING, guards.all_ok, effects.finish, Phase.DONE),
    Row("running: only servers left", Phase.RUNNING, guards.only_servers_left, effects.record_done, Phase.RUNNING),
    Row("running: superseded", Phase.RUNNING, guards.superseded, worker_stop.stop_superseded, Phase.STOPPING),
    Row("running: verdict", Phase.RUNNING, guards.verdict, worker_stop.stop_verdict, Phase.STOPPING),
    Row("running: killed", Phase.RUNNING, guards.vanished, effects.finish_killed, Phase.DONE),
    Row("running: drain unheard", Phase.RUNNING, guards.drain_unanswered, worker_stop.stop_drained, Phase.STOPPING),
    Row("stopping: out of time", Phase.STOPPING, guards.out_of_time, worker_stop.stop_out_of_time, Phase.STOPPING),
    Row("stopping: a loss", Phase.STOPPING, guards.unplanned_now, worker_stop.stop_faster, Phase.STOPPING),
    Row("stopping: failed", Phase.STOPPING, guards.failed_in_plan, worker_stop.stop_failed, Phase.STOPPING),
    Row("stopping: gone", Phase.STOPPING, guards.workers_gone, effects.finish, Phase.DONE),
    Row("done: verdict", Phase.DONE, guards.verdict, effects.report_verdict, Phase.LEAVING),
    Row("done: drained", Phase.DONE, guards.drain_recorded, effects.leave_drained, Phase.LEAVING),
    Row("done: registration lost", Phase.DONE, guards.lost_registration, effects.no_effect, Phase.JOINING),
    Row("done: chosen", Phase.DONE, guards.chosen, effects.target, Phase.GATED),
    Row("done: passed over", Phase.DONE, guards.passed_over, effects.no_effect, Phase.SPARE),
    Row("leaving: left", Phase.LEAVING, guards.left, effects.exit_agent, Phase.ENDED),
)
"""Every transition there is. Rows of one phase are asked from top to bottom."""

ROWS = {phase: tuple(row for row in TABLE if row.phase is phase) for phase in Phase}
