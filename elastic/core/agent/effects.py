"""What an agent does when it changes its phase: the effects of the rows of `elastic.core.agent.table` (pure).

An effect changes facts and says what is to be done; nothing happens here.
"""

from __future__ import annotations

from elastic.core.agent import guards
from elastic.core.agent.actions import CloseSession, ExitAgent, LogLine, ReportVerdict, StartWorkers
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import FinalStatus, Generation, GenerationMember, Outcome, OutcomeKind
from elastic.core.ps.text import tasks_in_words


def no_effect(f: AgentState) -> None:
    """The phase is all that changes."""


def report_verdict(f: AgentState) -> None:
    """Say how the job ended, and end with the exit code of that."""
    assert f.view.verdict is not None
    verdict = f.view.verdict.value
    f.act(ReportVerdict(verdict, late=f.registration.joined_at is None))
    f.leaving.exit_code = 1 if verdict.status is FinalStatus.FAILED else 0
    if f.phase is Phase.JOINING:
        _close(f)


def report_rejection(f: AgentState) -> None:
    """Say why the job does not take this node, and end."""
    f.act(LogLine(f.registration.refusal, warn=True))
    f.leaving.exit_code = 3
    _close(f)


def leave_drained(f: AgentState) -> None:
    """End with the exit code of the drain, at once where nothing has been joined."""
    assert f.leaving.drain is not None
    f.leaving.exit_code = f.leaving.drain.exit_code
    if f.phase is Phase.JOINING:
        comes = f.registration.joined_at is None and f.leaving.drain.deadline is not None
        f.act(
            LogLine(
                f"{f.leaving.drain.reason}: {'this node does not join' if comes else 'leaving'}, the job stays open"
            )
        )
        _close(f)


def leave_by_timeout(f: AgentState) -> None:
    """Say that no world came together, and leave."""
    words = f"no world came together in {f.limits.elastic_timeout_s:g} s (--elastic_timeout); leaving"
    f.act(LogLine(words, warn=True))
    f.leaving.exit_code = 4
    if f.phase is Phase.JOINING:
        _close(f)


def _close(f: AgentState) -> None:
    if f.registration.lease is not None:
        f.act(CloseSession(f.registration.lease))
    f.act(ExitAgent(f.leaving.exit_code))


def exit_agent(f: AgentState) -> None:
    """Nothing is left of this node in the store: say so, and end."""
    drain = f.leaving.drain
    if drain is not None and f.leaving.exit_code == drain.exit_code and not guards.verdict(f):
        named = drain.deadline is not None or drain.exit_code < 128  # Of a signal its sender knows.
        because = f" ({drain.reason})" if named else ""
        f.act(LogLine(f"left{because}; the job stays open"))
    _close(f)


def report_joined(f: AgentState) -> None:
    """Say that it stands in the job."""
    f.act(LogLine("registered again" if f.registration.joined_at is not None else f"joined the job as {f.me.node}"))
    f.registration.joined_at = f.now


def target(f: AgentState) -> None:
    """Wait for the go of the newest generation, and say who it is there."""
    generation = f.generation
    assert generation is not None
    f.workers.target = f.stamp
    f.workers.run_deadline = f.workers.run_deadline.clear_grants()
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
    f.workers.g, f.workers.since = f.workers.target
    f.workers.tasks = generation.members[m_id].tasks
    f.workers.cluster_spec_rev = generation.rev
    f.workers.gone = False
    f.workers.own_exits, f.workers.also_exits = [], []
    f.workers.forced = f.workers.hurried = f.workers.planned = f.workers.hung = f.workers.cut_short = False
    f.workers.unreached = ()
    f.workers.step = -1
    f.workers.started_at = f.now
    f.workers.run_until = f.workers.run_deadline.until()
    f.act(StartWorkers(generation, go.value, m_id, f.view.incarnation.value, f.view.spec.value.restarts_max))


def record_done(f: AgentState) -> None:
    """Record that the workers are done, while the servers run on."""
    f.want_outcome(f.workers.g, own_outcome(f, over=False))


def finish_killed(f: AgentState) -> None:
    """Record that the workers were killed."""
    f.workers.forced = True
    finish(f)


def finish(f: AgentState) -> None:
    """Record how the workers ended."""
    f.leaving.idle_since = f.now
    if f.store.replaced:
        f.forget_store()
        return
    f.workers.finished = max(f.workers.finished, (f.workers.g, f.workers.since))
    f.want_outcome(f.workers.g, own_outcome(f, over=True))


def own_outcome(f: AgentState, *, over: bool) -> Outcome:
    """How the workers of this node ended; `over` if none of them runs any more."""
    failed = sorted(
        (worker for worker in f.workers.own_exits if worker.code != 0),
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
        forced=f.workers.forced and ended is not OutcomeKind.OK,  # They ended well before they could be stopped.
        exits=tuple(failed),
        also=tuple(f.workers.also_exits),
        step=f.workers.step,
        since=f.workers.since,
        ran_s=round(f.now - f.workers.started_at, 3),
        unreached=f.workers.unreached,
    )
