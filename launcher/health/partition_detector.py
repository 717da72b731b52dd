"""When it is time to look whether other machines can be reached, and when to give up on those that cannot (pure).

The workers of a node wait for others before their process group stands, or they have made steps and make none. Either
may take long and be well. Only together with a machine that cannot be reached it is taken for a split network: from
half of the limit on it is looked again and again who is reached, so that every node knows by the time at which the
first one acts. What is not taken for one:

- a worker that prepares (`elastic.preparing`), here or elsewhere, and one that never said anything;
- a step that takes not much longer than those before it, and a first one;
- for four times as long, once a process group stands, or if one stood before with the same machine: one that was never
  reached. A firewall may keep the agents apart, and not the workers.

Workers that have all met, and whose group does not stand long after that, cannot speak with each other although their
agents can. That is a failure whose place nobody knows.

Seconds are those of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIRST_LOOK = 0.5
"""Of the limit: from then on it is looked."""
LOOK_EVERY = 0.125
"""Of the limit: so often it is looked while somebody is not reached, and at first."""
LASTS = 0.4
"""Of the limit: so long nobody may have been reached who is given up."""
LOOKS_MIN = 2
"""So many looks in a row show that a machine is not reached. One may have been lost on the way."""
LOOK_MAX_S = 30.0
"""While everybody is reached it is looked less and less often, and at least so often."""
BASELINE_S = 5.0
"""So long after a process group stands it is looked who can be reached while all is well. The start itself has work."""
STEPS = 3.0
"""So many times the longest of the last steps is no wait."""
FORGETS = 0.9
"""How much of a longest step is left with each step after it."""
FIRST_STEP = 4.0
"""Times the limit: a first step may take so long."""
NEVER_REACHED = 4.0
"""Times as long workers wait before a machine counts that was never reached, and whose workers were."""
FORMS = 10.0
"""Times the limit: so long a group may take to stand when all workers are there. It takes a moment."""


@dataclass(slots=True)
class _WorkerWait:
    """Since when a worker waits, and how long that may take; how long its steps take."""

    since: float
    allowed_s: float
    step_s: float | None = None


class PartitionDetector:
    """The clock of one node's workers in one generation; they are known by their local ranks."""

    def __init__(
        self,
        limit_s: float,
        others: Collection[str] = (),
        known: set[str] | None = None,
        met: set[str] | None = None,
    ) -> None:
        """`limit_s`: so long workers may wait while a machine is not reached; 0 switches the clock off.

        `known` are nodes that were reached before, or linked; those of `others` that are reached are added to it.
        `met` are nodes whose workers were in one process group with those of this one; `others` are added to it when
        the group stands.
        """
        self.limit_s = limit_s
        self._others = frozenset(others)
        self._known = known if known is not None else set()
        self._met = met if met is not None else set()
        self._waits: dict[int, _WorkerWait] = {}
        self._preparing: set[int] = set()
        self._met_at: dict[int, float] = {}
        self._stands = False
        self._baseline_at: float | None = None
        self._looked_at = float("-inf")
        self._pause_s = limit_s * LOOK_EVERY
        self._unreached: dict[str, tuple[float, int]] = {}

    # --- what workers say -----------------------------------------------------------------------------------------

    def waits(self, local_rank: int, now: float, *, prepares: bool = False) -> None:
        """A worker waits for others before the group stands; `prepares`: one of them prepares something."""
        if prepares or local_rank not in self._waits:
            self._begin(local_rank, _WorkerWait(now, self.limit_s))

    def met(self, local_rank: int, now: float) -> None:
        """All workers are there, and their group is about to stand."""
        self.waits(local_rank, now)
        self._met_at[local_rank] = now

    def formed(self, local_rank: int, now: float) -> None:
        """Its group stands."""
        self._waits.pop(local_rank, None)
        self._met_at.pop(local_rank, None)
        self._unreached = {}
        if not self._stands and not self._others <= self._known:
            self._baseline_at = now + BASELINE_S
        self._stands = True
        self._met.update(self._others)

    def restored(self, local_rank: int, now: float) -> None:
        """A worker has its state, and begins its first step."""
        self._begin(local_rank, _WorkerWait(now, FIRST_STEP * self.limit_s))

    def steps(self, local_rank: int, now: float) -> None:
        """A worker made a step: the ways that it needs are open."""
        before = self._waits.get(local_rank)
        step_s = 0.0
        if before is not None and before.step_s is not None:
            step_s = max(now - before.since, FORGETS * before.step_s)
        self._begin(local_rank, _WorkerWait(now, max(self.limit_s, STEPS * step_s), step_s))

    def preparing(self, local_rank: int) -> None:
        """A worker prepares something: nobody here is awaited until it is ready."""
        self._preparing.add(local_rank)

    def ready(self, local_rank: int, now: float) -> None:
        """The preparation is over; all begin anew."""
        if local_rank in self._preparing:
            self._preparing.discard(local_rank)
            for wait in self._waits.values():
                wait.since = now

    def gone(self, local_rank: int, now: float) -> None:
        """A worker is not awaited any more."""
        self._waits.pop(local_rank, None)
        self._met_at.pop(local_rank, None)
        self.ready(local_rank, now)
        if not self._waits:
            self._unreached = {}

    # --- who is reached -------------------------------------------------------------------------------------------

    @property
    def look_at(self) -> float | None:
        """When it is to be looked who is reached, None while that does not matter."""
        if not self.limit_s:
            return None
        times = [self._baseline_at] if self._baseline_at is not None else []
        if self._waits and not self._preparing:
            due = min(wait.since + FIRST_LOOK * wait.allowed_s for wait in self._waits.values())
            times.append(max(due, self._looked_at + self._pause_s))
        times += [at + FORMS * self.limit_s for at in self._met_at.values()]
        return min(times, default=None)

    def looked(self, reached: Collection[str], unreached: Collection[str], now: float) -> None:
        """What was seen of those that could be tried."""
        self._looked_at, self._baseline_at = now, None
        self._known.update(reached)
        long = any(now >= wait.since + NEVER_REACHED * wait.allowed_s for wait in self._waits.values())
        counted = {node for node in unreached if node in self._known or node not in self._met or long}
        often_s = self.limit_s * LOOK_EVERY
        self._pause_s = often_s if counted else max(min(2 * self._pause_s, LOOK_MAX_S), often_s)
        if not self._waits or self._preparing:
            counted = set()
        before, fresh = self._unreached, (now, 0)
        self._unreached = {node: (before.get(node, fresh)[0], before.get(node, fresh)[1] + 1) for node in counted}

    @property
    def unreached(self) -> tuple[str, ...]:
        """Who is not reached, by more than one look, while workers wait."""
        return tuple(sorted(node for node, (_, looks) in self._unreached.items() if looks >= LOOKS_MIN))

    def given_up(self, now: float) -> list[int]:
        """The local ranks of workers that wait, if those that are `unreached` have been so for too long; or nobody."""
        lasted = any(now >= self._unreached[node][0] + LASTS * self.limit_s for node in self.unreached)
        waited = any(now >= wait.since + wait.allowed_s for wait in self._waits.values())
        return sorted(self._waits) if lasted and waited and self.limit_s and not self._preparing else []

    def unformed(self, now: float) -> list[int]:
        """The local ranks of workers that have met the others, and whose group does not stand for too long."""
        late = any(now >= at + FORMS * self.limit_s for at in self._met_at.values())
        return sorted(self._met_at) if late and self.limit_s else []

    def _begin(self, local_rank: int, wait: _WorkerWait) -> None:
        self._waits[local_rank] = wait
        self._unreached = {}
        self._pause_s = self.limit_s * LOOK_EVERY
