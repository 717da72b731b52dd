"""What an agent does when it changes its phase: the effects of the rows of `elastic.core.agent.table` (pure).

An effect changes facts and says what is to be done; nothing happens here.
"""

from __future__ import annotations

from elastic.core.agent import guards
from elastic.core.agent.actions import CloseSession, ExitAgent, LogLine, ReportVerdict, StartWorkers
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import FinalStatus, Generation, GenerationMember, Outcome, OutcomeKind
from elastic.core.ps.text import tasks_in_words


def no_effect(agent: AgentState) -> None:
    """The phase is all that changes."""


def report_verdict(agent: AgentState) -> None:
    """Say how the job ended, and end with the exit code of that."""
    assert agent.view.verdict is not None
    verdict = agent.view.verdict.value
    agent.act(ReportVerdict(verdict, late=agent.registration.joined_at is None))
    agent.leaving.exit_code = 1 if verdict.status is FinalStatus.FAILED else 0
    if agent.phase is Phase.JOINING:
        _close(agent)


def report_rejection(agent: AgentState) -> None:
    """Say why the job does not take this node, and end."""
    agent.act(LogLine(agent.registration.refusal, warn=True))
    agent.leaving.exit_code = 3
    _close(agent)


def leave_drained(agent: AgentState) -> None:
    """End with the exit code of the drain, at once where nothing has been joined."""
    assert agent.leaving.drain is not None
    agent.leaving.exit_code = agent.leaving.drain.exit_code
    if agent.phase is Phase.JOINING:
        comes = agent.registration.joined_at is None and agent.leaving.drain.deadline is not None
        agent.act(
            LogLine(
                f"{agent.leaving.drain.reason}: {'this node does not join' if comes else 'leaving'}, the job stays open"
            )
        )
        _close(agent)


def leave_by_timeout(agent: AgentState) -> None:
    """Say that no world came together, and leave."""
    words = f"no world came together in {agent.limits.elastic_timeout_s:g} s (--elastic_timeout); leaving"
    agent.act(LogLine(words, warn=True))
    agent.leaving.exit_code = 4
    if agent.phase is Phase.JOINING:
        _close(agent)


def _close(agent: AgentState) -> None:
    if agent.registration.lease is not None:
        agent.act(CloseSession(agent.registration.lease))
    agent.act(ExitAgent(agent.leaving.exit_code))


def exit_agent(agent: AgentState) -> None:
    """Nothing is left of this node in the store: say so, and end."""
    drain = agent.leaving.drain
    if drain is not None and agent.leaving.exit_code == drain.exit_code and not guards.verdict(agent):
        named = drain.deadline is not None or drain.exit_code < 128  # Of a signal its sender knows.
        because = f" ({drain.reason})" if named else ""
        agent.act(LogLine(f"left{because}; the job stays open"))
    _close(agent)


def report_joined(agent: AgentState) -> None:
    """Say that it stands in the job."""
    agent.act(
        LogLine(
            "registered again" if agent.registration.joined_at is not None else f"joined the job as {agent.me.node}"
        )
    )
    agent.registration.joined_at = agent.now


def target(agent: AgentState) -> None:
    """Wait for the go of the newest generation, and say who it is there."""
    generation = agent.generation
    assert generation is not None
    agent.workers.target = agent.stamp
    agent.workers.run_deadline = agent.workers.run_deadline.clear_grants()
    m_id = generation.index(agent.me.node)
    assert m_id is not None
    if generation.members[m_id].tasks:
        _report_tasks(agent, generation, generation.members[m_id])
        return
    first = m_id * generation.slots
    ranks = f"rank {first}" if generation.slots == 1 else f"ranks {first}-{first + generation.slots - 1}"
    count, each = len(generation.members), generation.slots
    agent.act(
        LogLine(
            f"generation {generation.g}: {count} node{'' if count == 1 else 's'}"
            f"{f' of {each} workers' if each > 1 else ''}, world size {generation.world_size}, "
            f"this is M_id {m_id} ({ranks}): {generation.reason}"
        )
    )


def _report_tasks(agent: AgentState, generation: Generation, member: GenerationMember) -> None:
    count = len(generation.members)
    revision = f", revision {generation.rev}" if generation.rev else ""
    agent.act(
        LogLine(
            f"generation {generation.g}{revision}: {count} node{'' if count == 1 else 's'}, this one has "
            f"{tasks_in_words(member)}: {generation.reason}"
        )
    )


def start(agent: AgentState) -> None:
    """Start the workers of the generation that has its go."""
    generation, go = agent.generation, agent.view.go
    assert generation is not None
    assert go is not None
    assert agent.view.incarnation is not None
    assert agent.view.spec is not None
    m_id = generation.index(agent.me.node)
    assert m_id is not None
    agent.workers.g, agent.workers.since = agent.workers.target
    agent.workers.tasks = generation.members[m_id].tasks
    agent.workers.cluster_spec_rev = generation.rev
    agent.workers.gone = False
    agent.workers.own_exits, agent.workers.also_exits = [], []
    agent.workers.forced = agent.workers.hurried = agent.workers.planned = agent.workers.hung = (
        agent.workers.cut_short
    ) = False
    agent.workers.unreached = ()
    agent.workers.step = -1
    agent.workers.started_at = agent.now
    agent.workers.run_until = agent.workers.run_deadline.until()
    agent.act(
        StartWorkers(generation, go.value, m_id, agent.view.incarnation.value, agent.view.spec.value.restarts_max)
    )


def record_done(agent: AgentState) -> None:
    """Record that the workers are done, while the servers run on."""
    agent.want_outcome(agent.workers.g, own_outcome(agent, over=False))


def finish_killed(agent: AgentState) -> None:
    """Record that the workers were killed."""
    agent.workers.forced = True
    finish(agent)


def finish(agent: AgentState) -> None:
    """Record how the workers ended."""
    agent.leaving.idle_since = agent.now
    if agent.store.replaced:
        agent.forget_store()
        return
    agent.workers.finished = max(agent.workers.finished, (agent.workers.g, agent.workers.since))
    agent.want_outcome(agent.workers.g, own_outcome(agent, over=True))


def own_outcome(agent: AgentState, *, over: bool) -> Outcome:
    """How the workers of this node ended; `over` if none of them runs any more."""
    failed = sorted(
        (worker for worker in agent.workers.own_exits if worker.code != 0),
        key=lambda worker: worker.secondary,
    )
    ended = (
        OutcomeKind.FAILED
        if failed
        else OutcomeKind.OK
        if guards.all_ok(agent) or guards.workers_done(agent)
        else OutcomeKind.STOPPED
    )
    return Outcome(
        ended=ended,
        over=over,
        host=agent.me.member.host,
        forced=agent.workers.forced and ended is not OutcomeKind.OK,  # They ended well before they could be stopped.
        exits=tuple(failed),
        also=tuple(agent.workers.also_exits),
        step=agent.workers.step,
        since=agent.workers.since,
        ran_s=round(agent.now - agent.workers.started_at, 3),
        unreached=agent.workers.unreached,
    )
