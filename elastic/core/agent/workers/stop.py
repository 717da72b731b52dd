"""When and why this node stops its workers, how long they have after SIGTERM, and their run deadline (pure)."""

from __future__ import annotations

from elastic.core.agent.actions import ExtendRunDeadline, LogLine, StopWorkers
from elastic.core.agent.leaving import job_ended, stop_timeout_s
from elastic.core.agent.state import AgentState, StopKind
from elastic.core.agent.workers.exits import have_failed
from elastic.core.agent.workers.outcome import own_outcome
from elastic.core.model import FinalStatus, Generation
from elastic.core.text import failed_processes_text, process_name

ENDED = "because the job has ended"


def is_overdue(agent: AgentState) -> bool:
    """The run deadline has passed."""
    return agent.now >= agent.workers.run_deadline.until()


def overdue_at(agent: AgentState) -> float:
    """The run deadline."""
    return agent.workers.run_deadline.until()


def is_superseded(agent: AgentState) -> bool:
    """There is a newer generation or a newer start of this node's tasks, or the store was replaced."""
    if agent.store.replaced:
        return True
    generation, workers = agent.generation, agent.workers
    if generation is None or generation.g < workers.g:
        return False
    return generation.g > workers.g or agent.stamp != workers.start


def is_stopped_now(agent: AgentState) -> bool:
    """An operator has ended the job without waiting for the workers to save."""
    verdict = agent.view.verdict
    return verdict is not None and verdict.value.status is FinalStatus.STOPPED and job_ended(agent)


def must_hurry(agent: AgentState) -> bool:
    """The workers must stop faster, because the reason is no longer a planned change.

    A node or a worker failed in the meantime, an operator stopped waiting, or the other nodes have started another
    generation, so that these workers cannot save together with theirs.
    """
    generation, go, workers = agent.generation, agent.view.go, agent.workers
    if workers.stop in (StopKind.HURRIED, StopKind.CUT_SHORT) or workers.gone:
        return False
    if is_stopped_now(agent):
        return True
    if generation is None:
        return False
    went = go is not None and go.value.g > workers.g
    return went or (generation.g > workers.g + 1 and not generation.planned)


def failed_in_plan(agent: AgentState) -> bool:
    """A worker failed while all were stopping for a planned change, so that they cannot save together."""
    workers = agent.workers
    return agent.saves and workers.one_world and not workers.gone and have_failed(agent)


def stop_overdue(agent: AgentState) -> None:
    """Kill the workers: other nodes may replace them from now on."""
    agent.workers.forced = True
    why = "not renewed in time, or its key was deleted"
    agent.act(LogLine(f"lease expired ({why}): stopping this node's workers"))
    agent.act(StopWorkers(agent.workers.g, 0.0, "because the lease expired"))


def stop_superseded(agent: AgentState) -> None:
    """Stop the workers for the next generation; if the change is planned, let them save."""
    generation, workers = agent.generation, agent.workers
    if generation is None or agent.store.replaced:
        agent.act(LogLine("etcd was replaced or lost its data: stopping this node's workers, the job forms again"))
        agent.act(
            StopWorkers(workers.g, agent.limits.failure_stop_timeout_s, "because etcd was replaced or lost its data")
        )
        return
    if generation.g == workers.g:  # A revision without this node: it was asked to leave, or was considered lost.
        planned = generation.index(agent.me.node) is not None
    else:
        planned = generation.planned and generation.before is not None and generation.before.g == workers.g
    workers.stop = StopKind.PLANNED if planned else StopKind.HURRIED
    agent.act(LogLine(f"{generation.reason}: stopping this node's workers"))
    seconds = stop_timeout_s(agent) if planned else agent.limits.failure_stop_timeout_s
    agent.act(StopWorkers(workers.g, seconds, _stopped(generation), planned=planned))


def _stopped(generation: Generation) -> str:
    """Why a generation stopped the workers of the one before, as a phrase that follows "stopped"."""
    return f"{'for a planned change:' if generation.planned else 'because'} {generation.reason}"


def stop_faster(agent: AgentState) -> None:
    """Give workers that were saving no more time than after a node failure."""
    generation = agent.generation
    assert generation is not None or is_stopped_now(agent)
    agent.workers.stop = StopKind.HURRIED
    why = ENDED if generation is None or is_stopped_now(agent) else _stopped(generation)
    agent.act(StopWorkers(agent.workers.g, agent.limits.failure_stop_timeout_s, why))


def stop_ended(agent: AgentState) -> None:
    """Stop the workers because the job has ended."""
    hurried = is_stopped_now(agent)
    agent.workers.stop = StopKind.HURRIED if hurried else StopKind.ORDERLY
    seconds = agent.limits.failure_stop_timeout_s if hurried else agent.limits.stop_timeout_s
    agent.act(StopWorkers(agent.workers.g, seconds, ENDED))


def stop_failed(agent: AgentState) -> None:
    """Stop the other workers of this node, and record which ones failed."""
    workers = agent.workers
    failed = [worker for worker in workers.own_exits if worker.code != 0]
    worker = failed[0]
    verb = "hangs" if workers.hung else "ended"
    workers.stop = StopKind.HURRIED
    agent.act(LogLine(f"{process_name(worker.role, worker.rank)} {verb}: {worker.words}; stopping this node's workers"))
    workers.outcome_wanted = (workers.g, own_outcome(agent, over=False))
    why = f"because {failed_processes_text(failed, agent.me.member.host)}"
    agent.act(StopWorkers(workers.g, agent.limits.failure_stop_timeout_s, why))


def may_run_longer(agent: AgentState) -> bool:
    """The run deadline of running workers is later than the one that the nursery knows."""
    return not agent.workers.gone and agent.workers.run_deadline.until() > agent.workers.run_until


def extend_deadline(agent: AgentState) -> None:
    """Send the run deadline to the nursery."""
    agent.workers.run_until = agent.workers.run_deadline.until()
    agent.act(ExtendRunDeadline(agent.workers.run_until))
