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
        self._reports: dict[int, tuple[int, float]] = {}
        """Of each worker that is awaited its last step, and since when the next one is."""
        self._preparing: set[int] = set()

    def reported(self, local_rank: int, step: int, now: float) -> None:
        """A worker made a step."""
        self._reports[local_rank] = (step, now)

    def preparing(self, local_rank: int) -> None:
        """A worker prepares something: nobody here is awaited until it is ready."""
        self._preparing.add(local_rank)

    def ready(self, local_rank: int, now: float) -> None:
        """The preparation is over, or the worker is; all begin anew."""
        if local_rank in self._preparing:
            self._preparing.discard(local_rank)
            self._reports = {rank: (step, now) for rank, (step, _) in self._reports.items()}

    def gone(self, local_rank: int, now: float) -> None:
        """A worker is not awaited any more: it has ended, or is not to be heard."""
        self._reports.pop(local_rank, None)
        self.ready(local_rank, now)

    @property
    def due_at(self) -> float | None:
        """When somebody will be late, None while nobody can be."""
        if not self.limit_s or self._preparing or not self._reports:
            return None
        return min(since for _, since in self._reports.values()) + self.limit_s

    def late(self, now: float) -> list[tuple[int, int]]:
        """Who is late, each with its last step; the one that is furthest behind first.

        Once one is late, those that nearly are count too: workers that wait for each other reported their last steps
        within a moment, and the first of them is not the cause.
        """
        if self.due_at is None or now < self.due_at:
            return []
        nearly_s = self.limit_s * NEARLY
        late = [(rank, step) for rank, (step, since) in self._reports.items() if now >= since + nearly_s]
        return sorted(late, key=lambda worker: (worker[1], worker[0]))
