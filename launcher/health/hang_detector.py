"""When a worker that made steps has stopped to make them (pure).

It is off for a worker until its first report: nobody knows how long a first step may take. From then on it must report
again within the limit. A worker that says that it prepares something stops the clock of its whole node, since the
others wait for it; it goes on, from the start, when that worker is ready. Seconds are those of any monotonic clock.
"""

from __future__ import annotations

NEARLY = 0.9
"""Of the limit: who has been silent for so long is late together with the first."""


class HangDetector:
    """The clock of one node's workers in one generation; they are known by their local ranks."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: the longest time between two reports of a worker; 0 switches the clock off."""
        self.limit_s = limit_s
        self._steps: dict[int, int] = {}
        self._since: dict[int, float] = {}
        self._preparing: set[int] = set()

    def reported(self, local_rank: int, step: int, now: float) -> None:
        """A worker made a step."""
        self._steps[local_rank] = step
        self._since[local_rank] = now

    def preparing(self, local_rank: int) -> None:
        """A worker prepares something: nobody here is awaited until it is ready."""
        self._preparing.add(local_rank)

    def ready(self, local_rank: int, now: float) -> None:
        """The preparation is over, or the worker is; all begin anew."""
        if local_rank in self._preparing:
            self._preparing.discard(local_rank)
            self._since = dict.fromkeys(self._since, now)

    def gone(self, local_rank: int, now: float) -> None:
        """A worker is not awaited any more: it has ended, or is not to be heard."""
        self._since.pop(local_rank, None)
        self._steps.pop(local_rank, None)
        self.ready(local_rank, now)

    @property
    def due_at(self) -> float | None:
        """When somebody will be late, None while nobody can be."""
        if not self.limit_s or self._preparing or not self._since:
            return None
        return min(self._since.values()) + self.limit_s

    def late(self, now: float) -> list[tuple[int, int]]:
        """Who is late, each with its last step; the one that is furthest behind first.

        Once one is late, those that nearly are count too: workers that wait for each other reported their last steps
        within a moment, and the first of them is not the cause.
        """
        if self.due_at is None or now < self.due_at:
            return []
        late = [one for one, since in self._since.items() if now >= since + self.limit_s * NEARLY]
        return sorted(((one, self._steps[one]) for one in late), key=lambda worker: (worker[1], worker[0]))
