"""The additions of parameter-server jobs to this node's workers: tasks, servers that continue, revisions (pure)."""

from __future__ import annotations

from elastic._text import counted
from elastic.core.agent.actions import LogLine, PublishClusterSpec, ReportFailure
from elastic.core.agent.state import AgentState
from elastic.core.agent.workers.exits import have_failed
from elastic.core.model import Generation
from elastic.core.ps.model import ClusterSpec, Role
from elastic.core.ps.text import tasks_in_words


def tasks_text(cluster_spec: ClusterSpec, m_id: int) -> str:
    """What this node must run, as a phrase that follows "generation 1"."""
    revision = f", revision {cluster_spec.rev}" if cluster_spec.rev else ""
    tasks = tasks_in_words(cluster_spec.members[m_id])
    return f"{revision}: {counted(len(cluster_spec.members), 'node')}, this one has {tasks}"


def note_tasks(agent: AgentState, generation: Generation, m_id: int) -> None:
    """Note which tasks this node starts, and which revision of the cluster spec they know."""
    cluster_spec = generation if isinstance(generation, ClusterSpec) else None
    agent.workers.tasks = cluster_spec.members[m_id].tasks if cluster_spec is not None else ()
    agent.workers.cluster_spec_rev = cluster_spec.rev if cluster_spec is not None else 0


def trainers_ok(agent: AgentState) -> bool:
    """All workers of a node that may also have servers ended with exit code 0."""
    wanted = sum(task.role is not Role.SERVER for task in agent.workers.tasks)
    done = sum(worker.code == 0 and worker.role != Role.SERVER for worker in agent.workers.own_exits)
    return 0 < wanted == done and not have_failed(agent)


def only_servers_left(agent: AgentState) -> bool:
    """The workers have ended well, the servers continue, and no outcome of that start is recorded yet."""
    wanted = agent.workers.outcome_wanted
    said = wanted is not None and (wanted[0], wanted[1].since) == agent.workers.start
    return trainers_ok(agent) and not said and not agent.workers.gone


def _revision(agent: AgentState) -> ClusterSpec | None:
    """The newest revision of the cluster spec, None before the first revision."""
    newest, joined = agent.generation, agent.registration.joined_at is not None
    return newest if joined and isinstance(newest, ClusterSpec) and newest.rev else None


def revision_is_news(agent: AgentState) -> bool:
    """A revision answers a failure whose root cause this node has not reported."""
    revision = _revision(agent)
    failed = revision is not None and revision.cause is not None
    return failed and revision is not None and (revision.g, revision.rev) > agent.workers.reported


def report_revision(agent: AgentState) -> None:
    """Report the failure that a revision answers."""
    revision = _revision(agent)
    assert revision is not None
    assert revision.cause is not None
    agent.workers.reported = (revision.g, revision.rev)
    agent.act(ReportFailure(revision.cause, ""))


def cluster_spec_is_old(agent: AgentState) -> bool:
    """The processes of this node continue in a newer revision."""
    revision, workers = _revision(agent), agent.workers
    same = revision is not None and revision.g == workers.g and not workers.gone
    return same and revision is not None and revision.rev > workers.cluster_spec_rev


def publish_cluster_spec(agent: AgentState) -> None:
    """Pass the revision to the processes, unless they are about to stop."""
    revision = _revision(agent)
    assert revision is not None
    agent.workers.cluster_spec_rev = revision.rev
    if agent.member is not None and agent.stamp == agent.workers.start:
        agent.act(LogLine(f"revision {revision.rev} of the cluster spec: {revision.reason}"))
        agent.act(PublishClusterSpec(revision))
