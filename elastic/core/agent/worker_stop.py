"""Why an agent stops its workers, and how long they get after SIGTERM: effects of `elastic.core.agent.table` (pure)."""

from __future__ import annotations

from elastic.core.agent import guards
from elastic.core.agent.actions import LogLine, StopWorkers
from elastic.core.agent.effects import own_outcome
from elastic.core.agent.state import AgentState
from elastic.core.model import Generation
from elastic.core.text import failed_processes_text, process_name

ENDED = "because the job has ended"


def stop_overdue(agent: AgentState) -> None:
    """Kill the workers: others may take their place from now on."""
    agent.workers.forced = True
    why = "the lease was not refreshed in time, or its key is gone"
    agent.act(LogLine(f"the right to run ended ({why}): stopping this node's workers"))
    agent.act(StopWorkers(agent.workers.g, 0.0, "because the right to run ended"))


def stop_superseded(agent: AgentState) -> None:
    """Stop the workers for what comes next, in order where it is planned."""
    generation = agent.generation
    if generation is None or agent.store.replaced:
        agent.act(LogLine("the store is another one, or came back empty: stopping the workers, the job forms again"))
        agent.act(
            StopWorkers(agent.workers.g, agent.limits.loss_grace_s, "because the store is another one than before")
        )
        return
    if generation.g == agent.workers.g:  # A revision without this node: it was asked to leave, or was thought lost.
        planned = generation.index(agent.me.node) is not None
    else:
        planned = generation.planned and generation.before is not None and generation.before.g == agent.workers.g
    agent.workers.planned, agent.workers.hurried = planned, not planned
    agent.act(LogLine(f"{generation.reason}: stopping this node's workers"))
    grace_s = _grace_s(agent) if planned else agent.limits.loss_grace_s
    agent.act(StopWorkers(agent.workers.g, grace_s, _stopped(generation), planned=planned))


def _grace_s(agent: AgentState) -> float:
    """How long workers have after SIGTERM when nothing is broken."""
    return (
        agent.limits.grace_s
        if agent.leaving.drain is None
        else max(min(agent.limits.grace_s, agent.leaving.drain.workers_until - agent.now), 0.0)
    )


def _stopped(generation: Generation) -> str:
    """Why a generation stopped the workers of the one before, in words that go after "stopped"."""
    return f"{'for a planned change:' if generation.planned else 'because'} {generation.reason}"


def stop_faster(agent: AgentState) -> None:
    """Leave workers that were to save no more time than after a loss."""
    assert agent.generation is not None or guards.stopped_now(agent)
    agent.workers.hurried = True
    why = ENDED if agent.generation is None or guards.stopped_now(agent) else _stopped(agent.generation)
    agent.act(StopWorkers(agent.workers.g, agent.limits.loss_grace_s, why))


def stop_verdict(agent: AgentState) -> None:
    """Stop the workers because the job has ended."""
    agent.workers.hurried = guards.stopped_now(agent)
    agent.act(
        StopWorkers(
            agent.workers.g, agent.limits.loss_grace_s if agent.workers.hurried else agent.limits.grace_s, ENDED
        )
    )


def stop_failed(agent: AgentState) -> None:
    """Stop the others of this node, and record what failed."""
    failed = [worker for worker in agent.workers.own_exits if worker.code != 0]
    worker = failed[0]
    verb = "hangs" if agent.workers.hung else "ended"
    agent.workers.hurried = True
    agent.act(LogLine(f"{process_name(worker.role, worker.rank)} {verb}: {worker.words}; stopping this node's workers"))
    agent.want_outcome(agent.workers.g, own_outcome(agent, over=False))
    why = f"because {failed_processes_text(failed, agent.me.member.host)}"
    agent.act(StopWorkers(agent.workers.g, agent.limits.loss_grace_s, why))


def stop_drained(agent: AgentState) -> None:
    """Stop the workers by itself, in order."""
    agent.workers.forced = agent.workers.planned = True
    assert agent.leaving.drain is not None
    if agent.now < agent.leaving.drain.workers_until:
        agent.act(LogLine("nobody took notice of the drain: stopping this node's workers"))
    agent.act(StopWorkers(agent.workers.g, _grace_s(agent), "for a planned change: this node drains", planned=True))


def stop_out_of_time(agent: AgentState) -> None:
    """Kill the workers: the machine is about to go."""
    assert agent.leaving.drain is not None
    agent.workers.forced = agent.workers.hurried = agent.workers.cut_short = True
    agent.act(LogLine(f"no time is left ({agent.leaving.drain.reason}): ending this node's workers", warn=True))
    agent.act(StopWorkers(agent.workers.g, 0.0, f"because no time is left: {agent.leaving.drain.reason}"))
