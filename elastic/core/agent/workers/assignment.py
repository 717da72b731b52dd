"""What this node must run: its place in the newest generation, the start signal, and their log lines (pure)."""

from __future__ import annotations

from elastic._text import counted
from elastic.core import quarantine, text
from elastic.core.agent.actions import LogLine, ReportFailure, StartWorkers
from elastic.core.agent.state import AgentState, Phase, StopKind
from elastic.core.agent.workers.cluster_spec import note_tasks, tasks_text
from elastic.core.model import Generation
from elastic.core.ps.model import ClusterSpec


def is_chosen(agent: AgentState) -> bool:
    """This node is in the newest generation, in a start that it has not finished yet."""
    return agent.member is not None and agent.stamp > agent.workers.finished


def is_passed_over(agent: AgentState) -> bool:
    """This node is not in the newest generation."""
    return agent.member is None


def has_newer_target(agent: AgentState) -> bool:
    """There is a newer generation or start than the one whose start signal this node waits for."""
    return agent.generation is not None and agent.stamp != agent.workers.target


def may_start(agent: AgentState) -> bool:
    """The generation that this node waits for has its start signal, and the lease is valid."""
    generation, go = agent.generation, agent.view.go
    opened = generation is not None and go is not None and go.value.g == generation.g
    ready = agent.view.incarnation is not None and agent.now < agent.workers.run_deadline.until()
    return opened and ready and agent.stamp == agent.workers.target


def take_target(agent: AgentState) -> None:
    """Wait for the start signal of the newest generation, and report which member this node is."""
    generation = agent.generation
    assert generation is not None
    agent.workers.target = agent.stamp
    agent.workers.run_deadline = agent.workers.run_deadline.clear_grants()
    m_id = generation.index(agent.me.node)
    assert m_id is not None
    words = tasks_text(generation, m_id) if isinstance(generation, ClusterSpec) else _ranks_text(generation, m_id)
    agent.act(LogLine(f"generation {generation.g}{words}: {generation.reason}"))


def _ranks_text(generation: Generation, m_id: int) -> str:
    count, slots = len(generation.members), generation.slots
    first = m_id * slots
    ranks = f"rank {first}" if slots == 1 else f"ranks {first}-{first + slots - 1}"
    return (
        f": {counted(count, 'node')}{f' of {slots} workers' if slots > 1 else ''}, "
        f"world size {generation.world_size}, this is M_id {m_id} ({ranks})"
    )


def start_workers(agent: AgentState) -> None:
    """Start the workers of the generation that has its start signal."""
    generation, go, workers = agent.generation, agent.view.go, agent.workers
    assert generation is not None
    assert go is not None
    assert agent.view.incarnation is not None
    m_id = generation.index(agent.me.node)
    assert m_id is not None
    workers.g, workers.since = workers.target
    workers.count, workers.one_world = len(generation.members[m_id].ports), generation.one_world
    note_tasks(agent, generation, m_id)
    workers.gone = workers.forced = workers.hung = False
    workers.stop = StopKind.ORDERLY
    workers.own_exits, workers.also_exits, workers.unreached = [], [], ()
    workers.step, workers.started_at, workers.run_until = -1, agent.now, workers.run_deadline.until()
    incarnation = agent.view.incarnation.value
    agent.act(StartWorkers(generation, go.value, m_id, incarnation, agent.spec.restarts_max))


def failure_is_news(agent: AgentState) -> bool:
    """The start signal contains the root cause of a failure that this node has not reported."""
    go = agent.view.go
    joined = agent.registration.joined_at is not None
    return joined and go is not None and go.value.cause is not None and (go.value.g, 0) > agent.workers.reported


def report_failure(agent: AgentState) -> None:
    """Report the failure, unless the generation that follows it is already over."""
    go, generation = agent.view.go, agent.generation
    assert go is not None
    assert go.value.cause is not None
    agent.workers.reported = (go.value.g, 0)
    if generation is not None and generation.g == go.value.g:
        agent.act(ReportFailure(go.value.cause, go.value.note))


def is_new_spare(agent: AgentState) -> bool:
    """A generation runs without this node, which has not reported that. The view includes the node's key."""
    generation = agent.generation
    if agent.phase is not Phase.SPARE or agent.leaving.drain is not None or generation is None:
        return False
    known = agent.view.revision >= agent.registration.registered_at_revision
    outside = bool(generation.members) and generation.index(agent.me.node) is None
    return known and outside and agent.workers.spare_g != generation.g


def report_spare(agent: AgentState) -> None:
    """Report why this node is a spare. If np allows more nodes, it is one only for a moment."""
    generation, spec = agent.generation, agent.spec
    assert generation is not None
    agent.workers.spare_g = generation.g
    room = not spec.ips and spec.one_world and len(generation.members) < spec.np.high
    until = "which joins at the next start" if room else "which takes over when another node fails"
    spare = LogLine(f"spare: generation {generation.g} runs without this node, {until}")
    agent.act(_quarantine_line(agent, room=room) or spare)


def _quarantine_line(agent: AgentState, *, room: bool) -> LogLine | None:
    """Return the line for a node that is a spare because its host is quarantined, None for others.

    If there is `room`, an unreachable host stays out for as long as the leader cannot reach it.
    """
    for entry in agent.view.budget.hosts:
        until = agent.memory.quarantine_deadlines.get((entry.host, entry.g), agent.now)
        if entry.host == agent.me.member.host and (until > agent.now or (entry.unreachable and room)):
            at = f"{text.clock_time(agent.wall_at_zero + until)} UTC" if until > agent.now else "it can be reached"
            return LogLine(
                f"quarantined until {at}: {quarantine.reason_text(entry)}; it rejoins automatically", warn=True
            )
    return None
