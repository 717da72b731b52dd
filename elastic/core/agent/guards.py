"""When an agent goes from one phase to another: the guards of the rows of `elastic.core.agent.table` (pure)."""

from __future__ import annotations

from elastic.core.agent.state import AgentState
from elastic.core.model import FinalStatus, Role

DRAIN_PATIENCE_S = 5.0
"""A draining node whose job does not react stops its workers by itself after this time."""
RECORD_PATIENCE_S = 5.0
"""A leaving node tries for this long to record its outcome and to take back its registration."""


def verdict(f: AgentState) -> bool:
    """A verdict stands, and not the one that this node's registration replaced."""
    verdict = f.view.verdict
    return verdict is not None and not f.may_run_again and verdict.mod_revision > (f.registration.create_revision or 0)


def lost_registration(f: AgentState) -> bool:
    """The key of this node is gone, or was never there."""
    return f.registration.create_revision is None


def registered(f: AgentState) -> bool:
    """The key of this node stands."""
    return f.registration.create_revision is not None


def refused(f: AgentState) -> bool:
    """The job does not take this node."""
    return bool(f.registration.refusal)


def drain(f: AgentState) -> bool:
    """This node is asked to leave."""
    return f.leaving.drain is not None


def timed_out(f: AgentState) -> bool:
    """No world came together in the time that it waits at most (`--elastic_timeout`)."""
    return f.limits.elastic_timeout_s is not None and f.now >= f.leaving.idle_since + f.limits.elastic_timeout_s


def chosen(f: AgentState) -> bool:
    """It is in the newest generation, in a start of its seats that it has not finished yet."""
    return f.place is not None and f.stamp > f.workers.finished


def passed_over(f: AgentState) -> bool:
    """It is not in the newest generation."""
    return f.place is None


def newer_target(f: AgentState) -> bool:
    """A newer generation or start is there than the one whose go it waits for."""
    return f.generation is not None and f.stamp != f.workers.target


def go(f: AgentState) -> bool:
    """The world that it waits for starts, and it has the right to run."""
    return (
        f.generation is not None
        and f.view.incarnation is not None
        and f.view.go is not None
        and f.view.go.value.g == f.generation.g
        and f.stamp == f.workers.target
        and f.now < f.workers.run_deadline.until()
    )


def overdue(f: AgentState) -> bool:
    """Its right to run has ended."""
    return f.now >= f.workers.run_deadline.until()


def superseded(f: AgentState) -> bool:
    """A newer generation stands, its seats were given anew, or the store is another one."""
    if f.store.replaced:
        return True
    generation = f.generation
    if generation is None or generation.g < f.workers.g:
        return False
    return generation.g > f.workers.g or f.stamp != (f.workers.g, f.workers.since)


def failed(f: AgentState) -> bool:
    """One of its workers did not end well."""
    return any(worker.code != 0 for worker in f.workers.own_exits)


def all_ok(f: AgentState) -> bool:
    """All of its workers ended well."""
    return f.workers.gone and not failed(f) and len(f.workers.own_exits) == (len(f.workers.tasks) or f.me.member.slots)


def workers_done(f: AgentState) -> bool:
    """Every worker of a node that has servers, too, ended well."""
    wanted = sum(task.role is not Role.SERVER for task in f.workers.tasks)
    done = sum(worker.code == 0 and worker.role is not Role.SERVER for worker in f.workers.own_exits)
    return 0 < wanted == done and not failed(f)


def only_servers_left(f: AgentState) -> bool:
    """Its workers have ended well, its servers run on, and nothing has been recorded of that start yet."""
    start = (f.workers.g, f.workers.since)
    said = (
        f.workers.outcome_wanted is not None
        and (f.workers.outcome_wanted[0], f.workers.outcome_wanted[1].since) == start
    )
    return workers_done(f) and not said and not f.workers.gone


def vanished(f: AgentState) -> bool:
    """Its workers are gone, and nobody has stopped them."""
    return f.workers.gone


def drain_unanswered(f: AgentState) -> bool:
    """Nobody has reacted to its drain for so long that it stops its workers by itself."""
    return f.leaving.drain is not None and f.now >= f.leaving.drain.unheard_at(DRAIN_PATIENCE_S)


def out_of_time(f: AgentState) -> bool:
    """The workers have had the time that the drain's deadline leaves them, and some are still there."""
    return (
        f.leaving.drain is not None
        and f.now >= f.leaving.drain.workers_until
        and not f.workers.gone
        and not f.workers.cut_short
    )


def unplanned_now(f: AgentState) -> bool:
    """What workers are stopped for is no planned change any more.

    A loss or a failure came meanwhile, an operator does not wait any longer, or the others have gone on and meet nobody
    of this world again.
    """
    generation, go = f.generation, f.view.go
    if f.workers.hurried or f.workers.gone:
        return False
    if stopped_now(f):
        return True
    if generation is None:
        return False
    went = go is not None and go.value.g > f.workers.g
    return went or (generation.g > f.workers.g + 1 and not generation.planned)


def stopped_now(f: AgentState) -> bool:
    """An operator has ended the job without waiting for what the workers save."""
    return verdict(f) and f.view.verdict is not None and f.view.verdict.value.status is FinalStatus.STOPPED


def failed_in_plan(f: AgentState) -> bool:
    """A worker failed while all were asked to leave for a planned change: what was planned cannot be done."""
    return f.workers.planned and not f.workers.hurried and not f.workers.tasks and not f.workers.gone and failed(f)


def workers_gone(f: AgentState) -> bool:
    """Its workers are gone."""
    return f.workers.gone


def drain_recorded(f: AgentState) -> bool:
    """It is to leave, and how its workers ended is recorded, or has been tried for long enough."""
    if f.leaving.drain is None:
        return False
    return f.workers.outcome_wanted == f.workers.outcome_written or f.now >= f.entered_at + RECORD_PATIENCE_S


def left(f: AgentState) -> bool:
    """Its end is recorded and its key taken back, or it has been tried for long enough."""
    recorded = f.workers.outcome_wanted == f.workers.outcome_written
    return (
        recorded and (f.leaving.deregistered or f.registration.create_revision is None)
    ) or f.now >= f.entered_at + RECORD_PATIENCE_S
