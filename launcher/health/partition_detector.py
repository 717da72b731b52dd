"""Decides when to probe other nodes, and when workers have waited too long for unreachable ones (pure).

The workers of a node wait for others before their process group is ready, or while a step makes no progress. Either
may take long without a fault. Only a wait during which another node is unreachable counts as a network partition: from
half of the limit on, the agent probes the other nodes repeatedly, so that every node has a result when the first one
acts. These do not count as a partition:

- a worker that reports a preparation (`elastic.preparing`), on any node, and a worker that never reported anything;
- a step that takes not much longer than those before it, and a first step;
- for four times the limit, a node that was never reached, if the process group is ready or workers of both nodes were
  in one process group before: a firewall may block the agents, but not the workers.

If all workers have met and their process group is not ready long after that, they cannot connect to each other although
their agents can. This is a failure that no node can locate.

Seconds are those of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

FIRST_LOOK = 0.5
"""Fraction of the limit after which probes begin."""
LOOK_EVERY = 0.125
"""Fraction of the limit between two probes, at first and while a node is unreachable."""
LASTS = 0.4
"""Fraction of the limit for which a node must be unreachable before workers stop waiting for it."""
LOOKS_MIN = 2
"""Failed probes in a row that show that a node is unreachable. The packets of one may have been lost."""
LOOK_MAX_S = 30.0
"""Longest pause between two probes; the pause doubles while all nodes are reachable."""
BASELINE_S = 5.0
"""Time between a ready process group and the probe of the healthy job: the agents are busy during the start."""
STEPS = 3.0
"""A step may take this many times as long as the longest of the last steps before it counts as a wait."""
FORGETS = 0.9
"""Factor by which each further step reduces the longest step."""
FIRST_STEP = 4.0
"""Times the limit: allowed duration of a first step."""
NEVER_REACHED = 4.0
"""A multiple of the allowed wait.

A node whose agent has never answered counts as unreachable only after that time, if its workers were in one process
group with those of this node: a firewall may block only the agents.
"""
FORMS = 10.0
"""Times the limit: time for a process group to become ready once all workers have met. It usually takes a moment."""


@dataclass(slots=True)
class _WorkerWait:
    """When the wait of a worker began, how long it may take, and how long its steps take."""

    since: float
    allowed_s: float
    step_s: float | None = None


class PartitionDetector:
    """Times the workers of one node in one generation; they are identified by their local ranks."""

    def __init__(
        self,
        limit_s: float,
        others: Collection[str] = (),
        known: set[str] | None = None,
        met: set[str] | None = None,
    ) -> None:
        """Take the time that workers may wait while another node is unreachable; 0 disables the detector.

        `known` are nodes that were reached before, or linked; those of `others` that are reached are added to it.
        `met` are nodes whose workers were in one process group with those of this one; `others` are added to it when
        the group is ready.
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

    # --- reports of workers ---------------------------------------------------------------------------------------

    def waits(self, local_rank: int, now: float, *, prepares: bool = False) -> None:
        """Record that a worker waits for its process group; `prepares`: one of the others reports a preparation."""
        if prepares or local_rank not in self._waits:
            self._begin(local_rank, _WorkerWait(now, self.limit_s))

    def met(self, local_rank: int, now: float) -> None:
        """Record that all workers have met, as this worker reports; their group should be ready soon."""
        self.waits(local_rank, now)
        self._met_at[local_rank] = now

    def formed(self, local_rank: int, now: float) -> None:
        """Record that the process group of a worker is ready."""
        self._waits.pop(local_rank, None)
        self._met_at.pop(local_rank, None)
        self._unreached = {}
        if not self._stands and not self._others <= self._known:
            self._baseline_at = now + BASELINE_S
        self._stands = True
        self._met.update(self._others)

    def restored(self, local_rank: int, now: float) -> None:
        """Record that a worker has restored its state and begins its first step."""
        self._begin(local_rank, _WorkerWait(now, FIRST_STEP * self.limit_s))

    def steps(self, local_rank: int, now: float) -> None:
        """Record that a worker made a step, so its connections work."""
        before = self._waits.get(local_rank)
        step_s = 0.0
        if before is not None and before.step_s is not None:
            step_s = max(now - before.since, FORGETS * before.step_s)
        self._begin(local_rank, _WorkerWait(now, max(self.limit_s, STEPS * step_s), step_s))

    def preparing(self, local_rank: int) -> None:
        """Suspend the detector until this worker is ready."""
        self._preparing.add(local_rank)

    def ready(self, local_rank: int, now: float) -> None:
        """End the preparation of a worker; the wait of every worker restarts at 0."""
        if local_rank in self._preparing:
            self._preparing.discard(local_rank)
            for wait in self._waits.values():
                wait.since = now

    def gone(self, local_rank: int, now: float) -> None:
        """Stop timing a worker."""
        self._waits.pop(local_rank, None)
        self._met_at.pop(local_rank, None)
        self.ready(local_rank, now)
        if not self._waits:
            self._unreached = {}

    # --- results of probes ----------------------------------------------------------------------------------------

    @property
    def look_at(self) -> float | None:
        """When to probe the other nodes, None while that is not needed."""
        if not self.limit_s:
            return None
        times = [self._baseline_at] if self._baseline_at is not None else []
        if self._waits and not self._preparing:
            due = min(wait.since + FIRST_LOOK * wait.allowed_s for wait in self._waits.values())
            times.append(max(due, self._looked_at + self._pause_s))
        times += [at + FORMS * self.limit_s for at in self._met_at.values()]
        return min(times, default=None)

    def looked(self, reached: Collection[str], unreached: Collection[str], now: float) -> None:
        """Record the result of a probe of the nodes that could be tried."""
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
        """The nodes that more than one probe in a row did not reach while workers wait."""
        return tuple(sorted(node for node, (_, looks) in self._unreached.items() if looks >= LOOKS_MIN))

    def given_up(self, now: float) -> list[int]:
        """Return the local ranks of waiting workers if a node has been `unreached` for too long, else none."""
        lasted = any(now >= self._unreached[node][0] + LASTS * self.limit_s for node in self.unreached)
        waited = any(now >= wait.since + wait.allowed_s for wait in self._waits.values())
        return sorted(self._waits) if lasted and waited and self.limit_s and not self._preparing else []

    def unformed(self, now: float) -> list[int]:
        """Return the local ranks of workers that have met the others and whose group is overdue."""
        late = any(now >= at + FORMS * self.limit_s for at in self._met_at.values())
        return sorted(self._met_at) if late and self.limit_s else []

    def _begin(self, local_rank: int, wait: _WorkerWait) -> None:
        self._waits[local_rank] = wait
        self._unreached = {}
        self._pause_s = self.limit_s * LOOK_EVERY
