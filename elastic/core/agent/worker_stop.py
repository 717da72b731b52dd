"""Why an agent stops its workers, and how long they get after SIGTERM: effects of `elastic.core.agent.table` (pure)."""

from __future__ import annotations

from elastic.core.agent import guards
from elastic.core.agent.actions import LogLine, StopWorkers
from elastic.core.agent.effects import own_outcome
from elastic.core.agent.state import AgentState
from elastic.core.model import Generation
from elastic.core.text import failed_processes_text, process_name

ENDED = "because the job has ended"


def stop_overdue(f: AgentState) -> None:
    """Kill the workers: others may take their place from now on."""
    f.workers.forced = True
    why = "the lease was not refreshed in time, or its key is gone"
    f.act(LogLine(f"the right to run ended ({why}): stopping this node's workers"))
    f.act(StopWorkers(f.workers.g, 0.0, "because the right to run ended"))


def stop_superseded(f: AgentState) -> None:
    """Stop the workers for what comes next, in order where it is planned."""
    generation = f.generation
    if generation is None or f.store.replaced:
        f.act(LogLine("the store is another one, or came back empty: stopping the workers, the job forms again"))
        f.act(StopWorkers(f.workers.g, f.limits.loss_grace_s, "because the store is another one than before"))
        return
    if generation.g == f.workers.g:  # A revision without this node: it was asked to leave, or was thought lost.
        planned = generation.index(f.me.node) is not None
    else:
        planned = generation.planned and generation.before is not None and generation.before.g == f.workers.g
    f.workers.planned, f.workers.hurried = planned, not planned
    f.act(LogLine(f"{generation.reason}: stopping this node's workers"))
    grace_s = _grace_s(f) if planned else f.limits.loss_grace_s
    f.act(StopWorkers(f.workers.g, grace_s, _stopped(generation), planned=planned))


def _grace_s(f: AgentState) -> float:
    """How long workers have after SIGTERM when nothing is broken."""
    return (
        f.limits.grace_s
        if f.leaving.drain is None
        else max(min(f.limits.grace_s, f.leaving.drain.workers_until - f.now), 0.0)
    )


def _stopped(generation: Generation) -> str:
    """Why a generation stopped the workers of the one before, in words that go after "stopped"."""
    return f"{'for a planned change:' if generation.planned else 'because'} {generation.reason}"


def stop_faster(f: AgentState) -> None:
    """Leave workers that were to save no more time than after a loss."""
    assert f.generation is not None or guards.stopped_now(f)
    f.workers.hurried = True
    why = ENDED if f.generation is None or guards.stopped_now(f) else _stopped(f.generation)
    f.act(StopWorkers(f.workers.g, f.limits.loss_grace_s, why))


def stop_verdict(f: AgentState) -> None:
    """Stop the workers because the job has ended."""
    f.workers.hurried = guards.stopped_now(f)
    f.act(StopWorkers(f.workers.g, f.limits.loss_grace_s if f.workers.hurried else f.limits.grace_s, ENDED))


def stop_failed(f: AgentState) -> None:
    """Stop the others of this node, and record what failed."""
    failed = [worker for worker in f.workers.own_exits if worker.code != 0]
    worker = failed[0]
    verb = "hangs" if f.workers.hung else "ended"
    f.workers.hurried = True
    f.act(LogLine(f"{process_name(worker.role, worker.rank)} {verb}: {worker.words}; stopping this node's workers"))
    f.want_outcome(f.workers.g, own_outcome(f, over=False))
    why = f"because {failed_processes_text(failed, f.me.member.host)}"
    f.act(StopWorkers(f.workers.g, f.limits.loss_grace_s, why))


def stop_drained(f: AgentState) -> None:
    """Stop the workers by itself, in order."""
    f.workers.forced = f.workers.planned = True
    assert f.leaving.drain is not None
    if f.now < f.leaving.drain.workers_until:
        f.act(LogLine("nobody took notice of the drain: stopping this node's workers"))
    f.act(StopWorkers(f.workers.g, _grace_s(f), "for a planned change: this node drains", planned=True))


def stop_out_of_time(f: AgentState) -> None:
    """Kill the workers: the machine is about to go."""
    assert f.leaving.drain is not None
    f.workers.forced = f.workers.hurried = f.workers.cut_short = True
    f.act(LogLine(f"no time is left ({f.leaving.drain.reason}): ending this node's workers", warn=True))
    f.act(StopWorkers(f.workers.g, 0.0, f"because no time is left: {f.leaving.drain.reason}"))
