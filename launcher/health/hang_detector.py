"""Detects that a worker no longer completes steps (pure).

The detector ignores a worker until its first report, because a first step may take any time. From then on the worker
must report again within the limit. A worker that reports a preparation suspends the detector for its whole node, since
the others wait for it; when that worker is ready, the time of every worker restarts at 0. Seconds are those of any
monotonic clock.
"""

from __future__ import annotations

NEARLY = 0.9
"""Fraction of the limit: workers that have been silent this long count as late together with the first."""


class HangDetector:
    """Times the workers of one node in one generation; they are identified by their local ranks."""

    def __init__(self, limit_s: float) -> None:
        """Take the longest time between two reports of a worker; 0 disables the detector."""
        self.limit_s = limit_s
        self._reports: dict[int, tuple[int, float]] = {}
        """The last step of each local rank, and when the time of the next one began."""
        self._preparing: set[int] = set()

    def reported(self, local_rank: int, step: int, now: float) -> None:
        """Record that a worker made a step."""
        self._reports[local_rank] = (step, now)

    def preparing(self, local_rank: int) -> None:
        """Suspend the detector until this worker is ready."""
        self._preparing.add(local_rank)

    def ready(self, local_rank: int, now: float) -> None:
        """End the preparation of a worker; the time of every worker restarts at 0."""
        if local_rank in self._preparing:
            self._preparing.discard(local_rank)
            self._reports = {rank: (step, now) for rank, (step, _) in self._reports.items()}

    def gone(self, local_rank: int, now: float) -> None:
        """Stop timing a worker: it has exited, or its reports no longer arrive."""
        self._reports.pop(local_rank, None)
        self.ready(local_rank, now)

    @property
    def due_at(self) -> float | None:
        """When the next worker will be late, None while no worker can be."""
        if not self.limit_s or self._preparing or not self._reports:
            return None
        return min(since for _, since in self._reports.values()) + self.limit_s

    def late(self, now: float) -> list[tuple[int, int]]:
        """Return the local ranks of late workers with their last steps, the worker that is furthest behind first.

        Once one worker is late, those that nearly are late count, too: workers that wait for each other reported their
        last steps at almost the same time, and the first of them need not be the cause.
        """
        if self.due_at is None or now < self.due_at:
            return []
        nearly_s = self.limit_s * NEARLY
        late = [(rank, step) for rank, (step, since) in self._reports.items() if now >= since + nearly_s]
        return sorted(late, key=lambda worker: (worker[1], worker[0]))
