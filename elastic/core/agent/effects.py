"""What an agent does when it changes its phase: the effects of the rows of `elastic.core.agent.table` (pure).

An effect changes facts and says what is to be done; nothing happens here.
"""

from __future__ import annotations

from elastic.core.agent import guards
from elastic.core.agent.actions import CloseSession, ExitAgent, LogLine, ReportVerdict, StartWorkers, StopWorkers
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import FinalStatus, Generation, GenerationMember, Outcome, OutcomeKind
from elastic.core.ps.text import tasks_in_words
from elastic.core.text import failed_processes_text, process_name

ENDED = "because the job has ended"


def nothing(f: AgentState) -> None:
    """The phase is all that changes."""


def report_verdict(f: AgentState) -> None:
    """Say how the job ended, and end with the exit code of that."""
    assert f.view.verdict is not None
    verdict = f.view.verdict.value
    f.act(ReportVerdict(verdict, late=f.joined_at is None))
    f.exit_code = 1 if verdict.status is FinalStatus.FAILED else 0
    if f.phase is Phase.JOINING:
        _close(f)


def report_rejection(f: AgentState) -> None:
    """Say why the job does not take this node, and end."""
    f.act(LogLine(f.refusal, warn=True))
    f.exit_code = 3
    _close(f)


def leave_as_asked(f: AgentState) -> None:
    """End with the exit code of the drain, at once where nothing has been joined."""
    assert f.drain is not None
    f.exit_code = f.drain.exit_code
    if f.phase is Phase.JOINING:
        comes = f.joined_at is None and f.drain.deadline is not None
        f.act(LogLine(f"{f.drain.reason}: {'this node does not join' if comes else 'leaving'}, the job stays open"))
        _close(f)


def leave_by_timeout(f: AgentState) -> None:
    """Say that no world came together, and leave."""
    words = f"no world came together in {f.limits.elastic_timeout_s:g} s (--elastic_timeout); leaving"
    f.act(LogLine(words, warn=True))
    f.exit_code = 4
    if f.phase is Phase.JOINING:
        _close(f)


def _close(f: AgentState) -> None:
    if f.lease is not None:
        f.act(CloseSession(f.lease))
    f.act(ExitAgent(f.exit_code))


def ended(f: AgentState) -> None:
    """Nothing is left of this node in the store: say so, and end."""
    drain = f.drain
    if drain is not None and f.exit_code == drain.exit_code and not guards.verdict(f):
        named = drain.deadline is not None or drain.exit_code < 128  # Of a signal its sender knows.
        because = f" ({drain.reason})" if named else ""
        f.act(LogLine(f"left{because}; the job stays open"))
    _close(f)


def report_joined(f: AgentState) -> None:
    """Say that it stands in the job."""
    f.act(LogLine("registered again" if f.joined_at is not None else f"joined the job as {f.me.node}"))
    f.joined_at = f.now


def target(f: AgentState) -> None:
    """Wait for the go of the newest generation, and say who it is there."""
    generation = f.generation
    assert generation is not None
    f.target = f.stamp
    f.run_deadline = f.run_deadline.clear_grants()
    m_id = generation.index(f.me.node)
    assert m_id is not None
    if generation.members[m_id].tasks:
        _report_tasks(f, generation, generation.members[m_id])
        return
    first = m_id * generation.slots
    ranks = f"rank {first}" if generation.slots == 1 else f"ranks {first}-{first + generation.slots - 1}"
    count, each = len(generation.members), generation.slots
    f.act(
        LogLine(
            f"generation {generation.g}: {count} node{'' if count == 1 else 's'}"
            f"{f' of {each} workers' if each > 1 else ''}, world size {generation.world_size}, "
            f"this is M_id {m_id} ({ranks}): {generation.reason}"
        )
    )


def _report_tasks(f: AgentState, generation: Generation, place: GenerationMember) -> None:
    count = len(generation.members)
    revision = f", revision {generation.rev}" if generation.rev else ""
    f.act(
        LogLine(
            f"generation {generation.g}{revision}: {count} node{'' if count == 1 else 's'}, this one has "
            f"{tasks_in_words(place)}: {generation.reason}"
        )
    )


def start(f: AgentState) -> None:
    """Start the workers of the generation that has its go."""
    generation, go = f.generation, f.view.go
    assert generation is not None
    assert go is not None
    assert f.view.incarnation is not None
    assert f.view.spec is not None
    m_id = generation.index(f.me.node)
    assert m_id is not None
    f.workers_g, f.workers_since = f.target
    f.tasks = generation.members[m_id].tasks
    f.cluster_spec_rev = generation.rev
    f.workers_gone = False
    f.own_exits, f.also_exits = [], []
    f.forced = f.hurried = f.planned = f.hung = f.cut_short = False
    f.unreached = ()
    f.step = -1
    f.started_at = f.now
    f.run_until = f.run_deadline.until()
    f.act(StartWorkers(generation, go.value, m_id, f.view.incarnation.value, f.view.spec.value.restarts_max))


def stop_overdue(f: AgentState) -> None:
    """Kill the workers: others may take their place from now on."""
    f.forced = True
    why = "the lease was not refreshed in time, or its key is gone"
    f.act(LogLine(f"the right to run ended ({why}): stopping this node's workers"))
    f.act(StopWorkers(f.workers_g, 0.0, "because the right to run ended"))


def stop_superseded(f: AgentState) -> None:
    """Stop the workers for what comes next, in order where it is planned."""
    generation = f.generation
    if generation is None or f.another_store:
        f.act(LogLine("the store is another one, or came back empty: stopping the workers, the job forms again"))
        f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s, "because the store is another one than before"))
        return
    if generation.g == f.workers_g:  # A revision without this node: it was asked to leave, or was thought lost.
        planned = generation.index(f.me.node) is not None
    else:
        planned = generation.planned and generation.before is not None and generation.before.g == f.workers_g
    f.planned, f.hurried = planned, not planned
    f.act(LogLine(f"{generation.reason}: stopping this node's workers"))
    grace_s = _grace_s(f) if planned else f.limits.loss_grace_s
    f.act(StopWorkers(f.workers_g, grace_s, _stopped(generation), planned=planned))


def _grace_s(f: AgentState) -> float:
    """How long workers have after SIGTERM when nothing is broken."""
    return f.limits.grace_s if f.drain is None else max(min(f.limits.grace_s, f.drain.workers_until - f.now), 0.0)


def _stopped(generation: Generation) -> str:
    """Why a generation stopped the workers of the one before, in words that go after "stopped"."""
    return f"{'for a planned change:' if generation.planned else 'because'} {generation.reason}"


def stop_faster(f: AgentState) -> None:
    """Leave workers that were to save no more time than after a loss."""
    assert f.generation is not None or guards.stopped_now(f)
    f.hurried = True
    why = ENDED if f.generation is None or guards.stopped_now(f) else _stopped(f.generation)
    f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s, why))


def stop_verdict(f: AgentState) -> None:
    """Stop the workers because the job has ended."""
    f.hurried = guards.stopped_now(f)
    f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s if f.hurried else f.limits.grace_s, ENDED))


def stop_failed(f: AgentState) -> None:
    """Stop the others of this node, and record what failed."""
    failed = [worker for worker in f.own_exits if worker.code != 0]
    worker = failed[0]
    verb = "hangs" if f.hung else "ended"
    f.hurried = True
    f.act(LogLine(f"{process_name(worker.role, worker.rank)} {verb}: {worker.words}; stopping this node's workers"))
    f.want_outcome(f.workers_g, _outcome(f, over=False))
    why = f"because {failed_processes_text(failed, f.me.member.host)}"
    f.act(StopWorkers(f.workers_g, f.limits.loss_grace_s, why))


def record_done(f: AgentState) -> None:
    """Record that the workers are done, while the servers run on."""
    f.want_outcome(f.workers_g, _outcome(f, over=False))


def stop_drained(f: AgentState) -> None:
    """Stop the workers by itself, in order."""
    f.forced = f.planned = True
    assert f.drain is not None
    if f.now < f.drain.workers_until:
        f.act(LogLine("nobody took notice of the drain: stopping this node's workers"))
    f.act(StopWorkers(f.workers_g, _grace_s(f), "for a planned change: this node drains", planned=True))


def stop_out_of_time(f: AgentState) -> None:
    """Kill the workers: the machine is about to go."""
    assert f.drain is not None
    f.forced = f.hurried = f.cut_short = True
    f.act(LogLine(f"no time is left ({f.drain.reason}): ending this node's workers", warn=True))
    f.act(StopWorkers(f.workers_g, 0.0, f"because no time is left: {f.drain.reason}"))


def finish_killed(f: AgentState) -> None:
    """Record that the workers were killed."""
    f.forced = True
    finish(f)


def finish(f: AgentState) -> None:
    """Record how the workers ended."""
    f.idle_since = f.now
    if f.another_store:
        f.forget_store()
        return
    f.finished = max(f.finished, (f.workers_g, f.workers_since))
    f.want_outcome(f.workers_g, _outcome(f, over=True))


def _outcome(f: AgentState, *, over: bool) -> Outcome:
    failed = sorted(
        (worker for worker in f.own_exits if worker.code != 0),
        key=lambda worker: worker.secondary,
    )
    ended = (
        OutcomeKind.FAILED
        if failed
        else OutcomeKind.OK
        if guards.all_ok(f) or guards.workers_done(f)
        else OutcomeKind.STOPPED
    )
    return Outcome(
        ended=ended,
        over=over,
        host=f.me.member.host,
        forced=f.forced and ended is not OutcomeKind.OK,  # They ended well before they could be stopped.
        exits=tuple(failed),
        also=tuple(f.also_exits),
        step=f.step,
        since=f.workers_since,
        ran_s=round(f.now - f.started_at, 3),
        unreached=f.unreached,
    )
