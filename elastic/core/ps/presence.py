"""Which nodes of a cluster spec are present, how their tasks ended, and when their tasks are free (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from elastic.core.membership.situation import Situation
from elastic.core.model import Outcome, OutcomeKind
from elastic.core.ps.model import ClusterSpec, PsJobSpec, PsLayout, TaskMember
from elastic.core.ps.task_placement import Candidate
from elastic.core.run_deadline import CLOCK_ERROR

UNLIMITED = 1 << 30
"""The number of nodes that may have workers if np does not limit it."""


def newest(s: Situation) -> ClusterSpec:
    """The newest cluster spec, for rules that apply only if there is one."""
    return ClusterSpec.of(s.current)


def layout_of(s: Situation) -> PsLayout:
    """The layout of the job's processes."""
    assert isinstance(s.spec, PsJobSpec)
    return s.spec.layout


def is_present(s: Situation, node: str) -> bool:
    """Return whether a node is registered, and not certainly dead."""
    return node in s.view.members and node not in s.memory.dead


def tasks_free_at(s: Situation, node: str) -> float:
    """When an unregistered node certainly has no process left."""
    if node in s.memory.dead:
        return s.now
    return s.memory.absent_since.get(node, s.now) + s.spec.lease_ttl_s * (1 + CLOCK_ERROR) + s.policy.kill_s


def current_outcomes(s: Situation) -> dict[str, Outcome]:
    """The outcomes of the members' current starts; outcomes of older starts do not count."""
    starts = {member.node: member.since for member in newest(s).members}
    return {node: end for node, end in s.outcomes.items() if end.since == starts[node]}


def ended_with(ends: Mapping[str, Outcome], member: TaskMember, how: OutcomeKind) -> bool:
    """Return whether the current start of a member ended in this way."""
    end = ends.get(member.node)
    return end is not None and end.ended is how


def candidates_outside(s: Situation, inside: frozenset[str], stay: Collection[str] = ()) -> list[Candidate]:
    """The ready nodes outside the cluster spec, and the nodes in `stay`, oldest first."""
    found = []
    for node in (*s.memory.ready_since, *stay):
        stored = s.member(node)
        if stored is not None and node not in inside:
            found.append((stored.create_revision, node, stored.value))
    return [(node, member) for _, node, member in sorted(found, key=lambda one: one[:2])]
