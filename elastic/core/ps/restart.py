"""When a node of a roster whose processes failed gets its seats again, and what that costs (pure).

There is no gate between the failure and the new start, so what the failure was an echo of may not be known yet:

- While a server is away the workers that failed are not started again: they could only fail again. It costs nothing.
- A worker that was started before one of its servers was: its failure is free. That holds once for each start of a
  server, so that a script that fails again and again still uses up the budget.
- A worker that says that it lost its server, although none is away, waits for the length of a lease: so long may it
  take until the loss is seen. It costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elastic.core.membership.situation import Situation
from elastic.core.model import (
    Budget,
    ChangeReason,
    Generation,
    GenerationMember,
    OutcomeKind,
    Predecessor,
    PsLayout,
    Role,
)
from elastic.core.ps.task_placement import has_servers, has_workers, vacant_servers
from elastic.core.restart_policy import HEALTHY_S, Judgement, judge
from elastic.core.run_deadline import CLOCK_ERROR

WHEN_A_SERVER_IS_BACK = float("inf")


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """What the budget says, and when the seats are given again (`WHEN_A_SERVER_IS_BACK`: not before that)."""

    judgement: Judgement
    opens_at: float


def restart(
    s: Situation,
    roles: PsLayout,
    generation: Generation,
    place: GenerationMember,
    budget: Budget,
    present: Callable[[str], bool],
) -> RestartPlan:
    """Judge how the processes of `place` failed. `present` tells whether a node is registered."""
    stored = s.view.outcomes[generation.g, place.node]
    lost = {
        member.node
        for member in generation.members
        if not present(member.node) and not _has_finished(s, generation, member)
    }
    away = set(_missing_servers(roles, generation, place, present)) if has_workers(place) else set()
    renewed = has_workers(place) and any(
        has_servers(member) and member.since > place.since for member in generation.members
    )
    pause_s = 0.0
    lost |= away
    if renewed:
        lost.add("a server")
    elif not lost and has_workers(place) and all(worker.secondary for worker in stored.value.exits):
        lost.add("a server")
        pause_s = s.spec.lease_ttl_s * (1 + CLOCK_ERROR)
    before = Predecessor(generation.g, (place.node,), ChangeReason.FAILURE)
    healthy = stored.value.ran_s >= HEALTHY_S
    judgement = judge(before, {place.node: stored}, frozenset(lost), budget, s.spec, healthy=healthy)
    if away:
        return RestartPlan(judgement, WHEN_A_SERVER_IS_BACK)
    ended_at = s.memory.ended_since.get(place.node, s.now)
    return RestartPlan(judgement, ended_at + max(pause_s, judgement.pause_s))


def _has_finished(s: Situation, generation: Generation, place: GenerationMember) -> bool:
    """Tell whether a node's workers ended well, or all its processes ended; who goes after that is no loss."""
    end = s.outcome(generation.g, place.node)
    return end is not None and end.since == place.since and (end.over or end.ended is OutcomeKind.OK)


def _missing_servers(
    roles: PsLayout, generation: Generation, place: GenerationMember, present: Callable[[str], bool]
) -> Iterator[str]:
    """The servers that `place` has to wait for: nobody has them, or a node that is gone or leaves."""
    for index in vacant_servers(roles, generation.members):
        yield f"server {index}"
    for member in generation.members:
        if member.node != place.node and (member.leaving or not present(member.node)):
            yield from (f"server {task.index}" for task in member.tasks if task.role is Role.SERVER)
