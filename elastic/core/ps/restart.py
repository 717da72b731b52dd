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

from elastic.core.membership.situation import Question
from elastic.core.model import Before, Budget, Ended, Generation, Place, Role, Roles, Why
from elastic.core.ps.placement import serves, vacant_servers, works
from elastic.core.restart_policy import HEALTHY_S, Judgement, judge
from elastic.core.run_deadline import CLOCK_ERROR

WHEN_A_SERVER_IS_BACK = float("inf")


@dataclass(frozen=True, slots=True)
class Restart:
    """What the budget says, and when the seats are given again (`WHEN_A_SERVER_IS_BACK`: not before that)."""

    judgement: Judgement
    opens_at: float


def restart(
    q: Question, roles: Roles, generation: Generation, place: Place, budget: Budget, here: Callable[[str], bool]
) -> Restart:
    """Judge how the processes of `place` failed. `here` tells whether a node is registered."""
    stored = q.view.outcomes[generation.g, place.node]
    lost = {one.node for one in generation.members if not here(one.node) and not _done(q, generation, one)}
    away = set(_away(roles, generation, place, here)) if works(place) else set()
    renewed = works(place) and any(serves(one) and one.since > place.since for one in generation.members)
    pause_s = 0.0
    lost |= away
    if renewed:
        lost.add("a server")
    elif not lost and works(place) and all(worker.consequence for worker in stored.value.exits):
        lost.add("a server")
        pause_s = q.spec.lease_ttl_s * (1 + CLOCK_ERROR)
    before = Before(generation.g, (place.node,), Why.FAILURE)
    healthy = stored.value.ran_s >= HEALTHY_S
    judgement = judge(before, {place.node: stored}, frozenset(lost), budget, q.spec, healthy=healthy)
    if away:
        return Restart(judgement, WHEN_A_SERVER_IS_BACK)
    ended_at = q.memory.ended_since.get(place.node, q.now)
    return Restart(judgement, ended_at + max(pause_s, judgement.pause_s))


def _done(q: Question, generation: Generation, place: Place) -> bool:
    """Tell whether a node's workers ended well, or all its processes ended; who goes after that is no loss."""
    end = q.outcome(generation.g, place.node)
    return end is not None and end.since == place.since and (end.over or end.ended is Ended.OK)


def _away(roles: Roles, generation: Generation, place: Place, here: Callable[[str], bool]) -> Iterator[str]:
    """The servers that `place` has to wait for: nobody has them, or a node that is gone or leaves."""
    for index in vacant_servers(roles, generation.members):
        yield f"server {index}"
    for one in generation.members:
        if one.node != place.node and (one.leaving or not here(one.node)):
            yield from (f"server {seat.index}" for seat in one.seats if seat.role is Role.SERVER)
