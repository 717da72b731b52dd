"""What parameter-server jobs add to this node's workers: tasks, servers that run on, revisions (pure)."""

from __future__ import annotations

from elastic._text import counted
from elastic.core.agent.actions import LogLine, PublishClusterSpec, ReportFailure
from elastic.core.agent.state import AgentState
from elastic.core.agent.workers.exits import have_failed
from elastic.core.model import Generation
from elastic.core.ps.model import ClusterSpec, Role
from elastic.core.ps.text import tasks_in_words


def tasks_text(cluster_spec: ClusterSpec, m_id: int) -> str:
    """What this node is to run, after "generation 1"."""
    revision = f", revision {cluster_spec.rev}" if cluster_spec.rev else ""
    tasks = tasks_in_words(cluster_spec.members[m_id])
    return f"{revision}: {counted(len(cluster_spec.members), 'node')}, this one has {tasks}"


def note_tasks(agent: AgentState, generation: Generation, m_id: int) -> None:
    """Note which tasks this node starts, and of which revision they know."""
    cluster_spec = generation if isinstance(generation, ClusterSpec) else None
    agent.workers.tasks = cluster_spec.members[m_id].tasks if cluster_spec is not None else ()
    agent.workers.cluster_spec_rev = cluster_spec.rev if cluster_spec is not None else 0


def trainers_ok(agent: AgentState) -> bool:
    """Every worker of a node that has servers, too, ended well."""
    wanted = sum(task.role is not Role.SERVER for task in agent.workers.tasks)
    done = sum(worker.code == 0 and worker.role != Role.SERVER for worker in agent.workers.own_exits)
    return 0 < wanted == done and not have_failed(agent)


def only_servers_left(agent: AgentState) -> bool:
    """Its workers have ended well, its servers run on, and nothing has been recorded of that start yet."""
    wanted = agent.workers.outcome_wanted
    said = wanted is not None and (wanted[0], wanted[1].since) == agent.workers.start
    return trainers_ok(agent) and not said and not agent.workers.gone


def _revision(agent: AgentState) -> ClusterSpec | None:
    """The newest revision of the cluster spec, None if there is none after the first."""
    newest, joined = agent.generation, agent.registration.joined_at is not None
    return newest if joined and isinstance(newest, ClusterSpec) and newest.rev else None


def revision_is_news(agent: AgentState) -> bool:
    """A revision answers a failure, and people have not read its cause."""
    revision = _revision(agent)
    failed = revision is not None and revision.cause is not None
    return failed and revision is not None and (revision.g, revision.rev) > agent.workers.reported


def report_revision(agent: AgentState) -> None:
    """Tell people about the failure that a revision answers."""
    revision = _revision(agent)
    assert revision is not None
    assert revision.cause is not None
    agent.workers.reported = (revision.g, revision.rev)
    agent.act(ReportFailure(revision.cause, ""))


def cluster_spec_is_old(agent: AgentState) -> bool:
    """The processes of this node run on in a newer revision."""
    revision, workers = _revision(agent), agent.workers
    same = revision is not None and revision.g == workers.g and not workers.gone
    return same and revision is not None and revision.rev > workers.cluster_spec_rev


def publish_cluster_spec(agent: AgentState) -> None:
    """Tell them which node has which tasks now, unless they are about to stop."""
    revision = _revision(agent)
    assert revision is not None
    agent.workers.cluster_spec_rev = revision.rev
    if agent.member is not None and agent.stamp == agent.workers.start:
        agent.act(LogLine(f"revision {revision.rev} of the roster: {revision.reason}"))
        agent.act(PublishClusterSpec(revision))
