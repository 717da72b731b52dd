"""When a node whose processes failed starts its tasks again, and what that costs (pure).

There is no gate between the failure and the new start, so the root cause may not be known yet:

- While a server is away, failed workers are not started again, because they would only fail again. This costs nothing.
- The failure of a worker that started before one of its servers did is free. This applies once for each start of a
  server, so that a script that keeps failing still uses up the budget.
- A worker that reports a lost server although none is away waits for the length of a lease, because the failure of a
  server may take that long to be detected. This costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

from elastic.core.membership.situation import Situation
from elastic.core.model import Budget, ChangeReason, Outcome, OutcomeKind, Predecessor
from elastic.core.ps.model import ClusterSpec, PsLayout, Role, TaskMember
from elastic.core.ps.presence import is_present
from elastic.core.ps.task_placement import has_servers, has_workers, vacant_servers
from elastic.core.restart_policy import HEALTHY_S, Judgement, judge
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.view import StoredDocument

WHEN_A_SERVER_IS_BACK = float("inf")
SOME_SERVER: Final = "a server"
"""The name of a lost server that only the workers have noticed."""


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """The judgement of a failure, and when the tasks start again (`WHEN_A_SERVER_IS_BACK`: not before that)."""

    judgement: Judgement
    opens_at: float


@dataclass(frozen=True)
class TaskFailure:
    """The failure of a member's processes. `budget`: the job's used budget before it."""

    s: Situation
    layout: PsLayout
    cluster_spec: ClusterSpec
    member: TaskMember
    budget: Budget

    @property
    def outcome(self) -> StoredDocument[Outcome]:
        """The recorded outcome of the processes."""
        return self.s.view.outcomes[self.cluster_spec.g, self.member.node]

    @cached_property
    def away(self) -> frozenset[str]:
        """The servers that the workers must wait for, because no node has them or their node is gone or leaves."""
        if not has_workers(self.member):
            return frozenset()
        members = self.cluster_spec.members
        leaving = [other for other in members if other.leaving or not is_present(self.s, other.node)]
        tasks = [task for other in leaving if other.node != self.member.node for task in other.tasks]
        indexes = [*vacant_servers(self.layout, members), *(task.index for task in tasks if task.role is Role.SERVER)]
        return frozenset(f"server {index}" for index in indexes)

    @cached_property
    def lost(self) -> frozenset[str]:
        """The lost nodes and servers that the leader knows of."""
        nodes = {other.node for other in self.cluster_spec.members if self._is_lost(other)}
        servers = [other for other in self.cluster_spec.members if has_servers(other)]
        renewed = has_workers(self.member) and any(other.since > self.member.since for other in servers)
        return self.away | nodes | ({SOME_SERVER} if renewed else set())

    @property
    def is_premature(self) -> bool:
        """Whether the workers report a lost server, and the leader has not detected a failed node yet."""
        exits = self.outcome.value.exits
        return not self.lost and has_workers(self.member) and all(worker.secondary for worker in exits)

    def _is_lost(self, other: TaskMember) -> bool:
        """Return whether a node is gone although its workers had not ended well and some of its processes still ran."""
        end = self.s.outcome(self.cluster_spec.g, other.node)
        current = end is not None and end.since == other.since
        finished = current and end is not None and (end.over or end.ended is OutcomeKind.OK)
        return not finished and not is_present(self.s, other.node)


def restart(failure: TaskFailure) -> RestartPlan:
    """Judge the failure of a member's processes, and decide when they start again."""
    s, node, stored = failure.s, failure.member.node, failure.outcome
    wait_s, lost = 0.0, failure.lost
    if failure.is_premature:
        wait_s, lost = s.spec.lease_ttl_s * (1 + CLOCK_ERROR), frozenset({SOME_SERVER})
    before = Predecessor(failure.cluster_spec.g, (node,), ChangeReason.FAILURE)
    healthy = stored.value.ran_s >= HEALTHY_S
    judgement = judge(before, {node: stored}, lost, failure.budget, s.spec, healthy=healthy)
    if failure.away:
        return RestartPlan(judgement, WHEN_A_SERVER_IS_BACK)
    return RestartPlan(judgement, s.memory.ended_since.get(node, s.now) + max(wait_s, judgement.pause_s))
