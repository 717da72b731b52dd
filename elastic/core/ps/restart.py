"""When a node whose processes failed gets its tasks again, and what that costs (pure).

There is no gate between the failure and the new start, so what caused the failure may not be known yet:

- While a server is away the workers that failed are not started again: they could only fail again. It costs nothing.
- A worker that was started before one of its servers was: its failure is free. That holds once for each start of a
  server, so that a script that fails again and again still uses up the budget.
- A worker that says that it lost its server, although none is away, waits for the length of a lease: so long may it
  take until the loss is seen. It costs nothing.
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
"""The name, among what was lost, of a server that only the workers miss."""


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What the budget says, and when the tasks are given again (`WHEN_A_SERVER_IS_BACK`: not before that)."""

    judgement: Judgement
    opens_at: float


@dataclass(frozen=True)
class TaskFailure:
    """The processes of a member failed. `budget`: what the job has used up before that."""

    s: Situation
    layout: PsLayout
    cluster_spec: ClusterSpec
    member: TaskMember
    budget: Budget

    @property
    def outcome(self) -> StoredDocument[Outcome]:
        """How they ended."""
        return self.s.view.outcomes[self.cluster_spec.g, self.member.node]

    @cached_property
    def away(self) -> frozenset[str]:
        """The servers that its workers have to wait for: no node has them, or one that is gone or leaves."""
        if not has_workers(self.member):
            return frozenset()
        members = self.cluster_spec.members
        leaving = [other for other in members if other.leaving or not is_present(self.s, other.node)]
        tasks = [task for other in leaving if other.node != self.member.node for task in other.tasks]
        indexes = [*vacant_servers(self.layout, members), *(task.index for task in tasks if task.role is Role.SERVER)]
        return frozenset(f"server {index}" for index in indexes)

    @cached_property
    def lost(self) -> frozenset[str]:
        """The nodes and servers that were lost, as far as the leader knows."""
        nodes = {other.node for other in self.cluster_spec.members if self._is_lost(other)}
        servers = [other for other in self.cluster_spec.members if has_servers(other)]
        renewed = has_workers(self.member) and any(other.since > self.member.since for other in servers)
        return self.away | nodes | ({SOME_SERVER} if renewed else set())

    @property
    def is_premature(self) -> bool:
        """Whether its workers say that they lost a server, and the leader knows of no loss yet."""
        exits = self.outcome.value.exits
        return not self.lost and has_workers(self.member) and all(worker.secondary for worker in exits)

    def _is_lost(self, other: TaskMember) -> bool:
        """Tell whether a node is gone before its workers ended well, or all its processes ended."""
        end = self.s.outcome(self.cluster_spec.g, other.node)
        current = end is not None and end.since == other.since
        finished = current and end is not None and (end.over or end.ended is OutcomeKind.OK)
        return not finished and not is_present(self.s, other.node)


def restart(failure: TaskFailure) -> RestartPlan:
    """Judge how the processes of a member failed, and when they start again."""
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
