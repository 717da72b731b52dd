"""When an agent goes from one phase to another: the guards of the rows of `elastic.core.agent.table` (pure)."""

from __future__ import annotations

from elastic.core.agent.state import AgentState
from elastic.core.model import FinalStatus, Role

DRAIN_PATIENCE_S = 5.0
"""A draining node whose job does not react stops its workers by itself after this time."""
RECORD_PATIENCE_S = 5.0
"""A leaving node tries for this long to record its outcome and to take back its registration."""


def verdict(agent: AgentState) -> bool:
    """A verdict stands, and not the one that this node's registration replaced."""
    verdict = agent.view.verdict
    return (
        verdict is not None
        and not agent.may_run_again
        and verdict.mod_revision > (agent.registration.create_revision or 0)
    )


def lost_registration(agent: AgentState) -> bool:
    """The key of this node is gone, or was never there."""
    return agent.registration.create_revision is None


def registered(agent: AgentState) -> bool:
    """The key of this node stands."""
    return agent.registration.create_revision is not None


def refused(agent: AgentState) -> bool:
    """The job does not take this node."""
    return bool(agent.registration.refusal)


def drain(agent: AgentState) -> bool:
    """This node is asked to leave."""
    return agent.leaving.drain is not None


def timed_out(agent: AgentState) -> bool:
    """No world came together in the time that it waits at most (`--elastic_timeout`)."""
    return (
        agent.limits.elastic_timeout_s is not None
        and agent.now >= agent.leaving.idle_since + agent.limits.elastic_timeout_s
    )


def chosen(agent: AgentState) -> bool:
    """It is in the newest generation, in a start of its seats that it has not finished yet."""
    return agent.member is not None and agent.stamp > agent.workers.finished


def passed_over(agent: AgentState) -> bool:
    """It is not in the newest generation."""
    return agent.member is None


def newer_target(agent: AgentState) -> bool:
    """A newer generation or start is there than the one whose go it waits for."""
    return agent.generation is not None and agent.stamp != agent.workers.target


def go(agent: AgentState) -> bool:
    """The world that it waits for starts, and it has the right to run."""
    return (
        agent.generation is not None
        and agent.view.incarnation is not None
        and agent.view.go is not None
        and agent.view.go.value.g == agent.generation.g
        and agent.stamp == agent.workers.target
        and agent.now < agent.workers.run_deadline.until()
    )


def overdue(agent: AgentState) -> bool:
    """Its right to run has ended."""
    return agent.now >= agent.workers.run_deadline.until()


def superseded(agent: AgentState) -> bool:
    """A newer generation stands, its seats were given anew, or the store is another one."""
    if agent.store.replaced:
        return True
    generation = agent.generation
    if generation is None or generation.g < agent.workers.g:
        return False
    return generation.g > agent.workers.g or agent.stamp != (agent.workers.g, agent.workers.since)


def failed(agent: AgentState) -> bool:
    """One of its workers did not end well."""
    return any(worker.code != 0 for worker in agent.workers.own_exits)


def all_ok(agent: AgentState) -> bool:
    """All of its workers ended well."""
    return (
        agent.workers.gone
        and not failed(agent)
        and len(agent.workers.own_exits) == (len(agent.workers.tasks) or agent.me.member.slots)
    )


def workers_done(agent: AgentState) -> bool:
    """Every worker of a node that has servers, too, ended well."""
    wanted = sum(task.role is not Role.SERVER for task in agent.workers.tasks)
    done = sum(worker.code == 0 and worker.role is not Role.SERVER for worker in agent.workers.own_exits)
    return 0 < wanted == done and not failed(agent)


def only_servers_left(agent: AgentState) -> bool:
    """Its workers have ended well, its servers run on, and nothing has been recorded of that start yet."""
    start = (agent.workers.g, agent.workers.since)
    said = (
        agent.workers.outcome_wanted is not None
        and (agent.workers.outcome_wanted[0], agent.workers.outcome_wanted[1].since) == start
    )
    return workers_done(agent) and not said and not agent.workers.gone


def vanished(agent: AgentState) -> bool:
    """Its workers are gone, and nobody has stopped them."""
    return agent.workers.gone


def drain_unanswered(agent: AgentState) -> bool:
    """Nobody has reacted to its drain for so long that it stops its workers by itself."""
    return agent.leaving.drain is not None and agent.now >= agent.leaving.drain.unheard_at(DRAIN_PATIENCE_S)


def out_of_time(agent: AgentState) -> bool:
    """The workers have had the time that the drain's deadline leaves them, and some are still there."""
    return (
        agent.leaving.drain is not None
        and agent.now >= agent.leaving.drain.workers_until
        and not agent.workers.gone
        and not agent.workers.cut_short
    )


def unplanned_now(agent: AgentState) -> bool:
    """What workers are stopped for is no planned change any more.

    A loss or a failure came meanwhile, an operator does not wait any longer, or the others have gone on and meet nobody
    of this world again.
    """
    generation, go = agent.generation, agent.view.go
    if agent.workers.hurried or agent.workers.gone:
        return False
    if stopped_now(agent):
        return True
    if generation is None:
        return False
    went = go is not None and go.value.g > agent.workers.g
    return went or (generation.g > agent.workers.g + 1 and not generation.planned)


def stopped_now(agent: AgentState) -> bool:
    """An operator has ended the job without waiting for what the workers save."""
    return verdict(agent) and agent.view.verdict is not None and agent.view.verdict.value.status is FinalStatus.STOPPED


def failed_in_plan(agent: AgentState) -> bool:
    """A worker failed while all were asked to leave for a planned change: what was planned cannot be done."""
    return (
        agent.workers.planned
        and not agent.workers.hurried
        and not agent.workers.tasks
        and not agent.workers.gone
        and failed(agent)
    )


def workers_gone(agent: AgentState) -> bool:
    """Its workers are gone."""
    return agent.workers.gone


def drain_recorded(agent: AgentState) -> bool:
    """It is to leave, and how its workers ended is recorded, or has been tried for long enough."""
    if agent.leaving.drain is None:
        return False
    return (
        agent.workers.outcome_wanted == agent.workers.outcome_written
        or agent.now >= agent.entered_at + RECORD_PATIENCE_S
    )


def left(agent: AgentState) -> bool:
    """Its end is recorded and its key taken back, or it has been tried for long enough."""
    recorded = agent.workers.outcome_wanted == agent.workers.outcome_written
    return (
        recorded and (agent.leaving.deregistered or agent.registration.create_revision is None)
    ) or agent.now >= agent.entered_at + RECORD_PATIENCE_S
