"""Why this node stops its workers, and how long they get after SIGTERM; until when they may run (pure)."""

from __future__ import annotations

from elastic.core.agent.actions import ExtendRunDeadline, LogLine, StopWorkers
from elastic.core.agent.leaving import grace_s, job_ended
from elastic.core.agent.state import AgentState, StopKind
from elastic.core.agent.workers.exits import have_failed
from elastic.core.agent.workers.outcome import own_outcome
from elastic.core.model import FinalStatus, Generation
from elastic.core.text import failed_processes_text, process_name

ENDED = "because the job has ended"


def is_overdue(agent: AgentState) -> bool:
    """Its run deadline has come."""
    return agent.now >= agent.workers.run_deadline.until()


def overdue_at(agent: AgentState) -> float:
    """Its run deadline."""
    return agent.workers.run_deadline.until()


def is_superseded(agent: AgentState) -> bool:
    """There is a newer generation, or its tasks were given to it once more, or the store is another one."""
    if agent.store.replaced:
        return True
    generation, workers = agent.generation, agent.workers
    if generation is None or generation.g < workers.g:
        return False
    return generation.g > workers.g or agent.stamp != workers.start


def is_stopped_now(agent: AgentState) -> bool:
    """An operator has ended the job without waiting for what the workers save."""
    verdict = agent.view.verdict
    return verdict is not None and verdict.value.status is FinalStatus.STOPPED and job_ended(agent)


def must_hurry(agent: AgentState) -> bool:
    """What workers are stopped for is no planned change any more.

    A loss or a failure came meanwhile, an operator does not wait any longer, or the others have gone on and meet nobody
    of this world again.
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
    """A worker failed while all were asked to leave for a planned change: what was planned cannot be done."""
    workers = agent.workers
    return agent.saves and workers.one_world and not workers.gone and have_failed(agent)


def stop_overdue(agent: AgentState) -> None:
    """Kill the workers: others may take their place from now on."""
    agent.workers.forced = True
    why = "the lease was not refreshed in time, or its key is gone"
    agent.act(LogLine(f"the right to run ended ({why}): stopping this node's workers"))
    agent.act(StopWorkers(agent.workers.g, 0.0, "because the right to run ended"))


def stop_superseded(agent: AgentState) -> None:
    """Stop the workers for what comes next, in order where it is planned."""
    generation, workers = agent.generation, agent.workers
    if generation is None or agent.store.replaced:
        agent.act(LogLine("the store is another one, or came back empty: stopping the workers, the job forms again"))
        agent.act(StopWorkers(workers.g, agent.limits.loss_grace_s, "because the store is another one than before"))
        return
    if generation.g == workers.g:  # A revision without this node: it was asked to leave, or was thought lost.
        planned = generation.index(agent.me.node) is not None
    else:
        planned = generation.planned and generation.before is not None and generation.before.g == workers.g
    workers.stop = StopKind.PLANNED if planned else StopKind.HURRIED
    agent.act(LogLine(f"{generation.reason}: stopping this node's workers"))
    seconds = grace_s(agent) if planned else agent.limits.loss_grace_s
    agent.act(StopWorkers(workers.g, seconds, _stopped(generation), planned=planned))


def _stopped(generation: Generation) -> str:
    """Why a generation stopped the workers of the one before, in words that go after "stopped"."""
    return f"{'for a planned change:' if generation.planned else 'because'} {generation.reason}"


def stop_faster(agent: AgentState) -> None:
    """Leave workers that were to save no more time than after a loss."""
    generation = agent.generation
    assert generation is not None or is_stopped_now(agent)
    agent.workers.stop = StopKind.HURRIED
    why = ENDED if generation is None or is_stopped_now(agent) else _stopped(generation)
    agent.act(StopWorkers(agent.workers.g, agent.limits.loss_grace_s, why))


def stop_ended(agent: AgentState) -> None:
    """Stop the workers because the job has ended."""
    hurried = is_stopped_now(agent)
    agent.workers.stop = StopKind.HURRIED if hurried else StopKind.ORDERLY
    seconds = agent.limits.loss_grace_s if hurried else agent.limits.grace_s
    agent.act(StopWorkers(agent.workers.g, seconds, ENDED))


def stop_failed(agent: AgentState) -> None:
    """Stop the others of this node, and record what failed."""
    workers = agent.workers
    failed = [worker for worker in workers.own_exits if worker.code != 0]
    worker = failed[0]
    verb = "hangs" if workers.hung else "ended"
    workers.stop = StopKind.HURRIED
    agent.act(LogLine(f"{process_name(worker.role, worker.rank)} {verb}: {worker.words}; stopping this node's workers"))
    workers.outcome_wanted = (workers.g, own_outcome(agent, over=False))
    why = f"because {failed_processes_text(failed, agent.me.member.host)}"
    agent.act(StopWorkers(workers.g, agent.limits.loss_grace_s, why))


def may_run_longer(agent: AgentState) -> bool:
    """Workers run, and may run longer than the nursery knows."""
    return not agent.workers.gone and agent.workers.run_deadline.until() > agent.workers.run_until


def extend_deadline(agent: AgentState) -> None:
    """Tell the nursery how long its workers may run."""
    agent.workers.run_until = agent.workers.run_deadline.until()
    agent.act(ExtendRunDeadline(agent.workers.run_until))
