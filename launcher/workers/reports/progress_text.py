"""The progress lines about a node's workers while they run (pure).

    step 1200 · 24.1 steps/s · world 3 · loss 0.1234       on the node with rank 0
    waiting 40 s for rank 2 (downloading)                  while workers of this node wait for others
    rank 2 is preparing: downloading (40 s)

Seconds are those of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from launcher.wire.inspect_messages import WorkerState
from launcher.workers.reports.states import TrackedProcess, WorkerReport

WAIT_EVERY_S = 10.0
"""A wait is logged after this time, and again each time it has passed."""
PROGRESS_EVERY_TERMINAL_S = 10.0
PROGRESS_EVERY_S = 60.0
METRICS_SHOWN_MAX = 8


@dataclass
class ProgressFormatter:
    """Formats the lines about the workers of one generation on one node."""

    terminal: bool
    _joining_said_at: float = float("-inf")
    _preparing_said: dict[tuple[int, float], int] = field(default_factory=dict)
    """How often a preparation was logged, by the rank and the time of its start."""
    _said_step: int | None = None
    _said_at: float = float("-inf")

    def pending(self, workers: Collection[TrackedProcess]) -> bool:
        """Return whether something may become reportable without another message of a worker."""
        waiting = any(one.state in (WorkerState.JOINING, WorkerState.PREPARING) for one in workers)
        return waiting or any(one.rank == 0 and self._unsaid(one.report) for one in workers)

    def waits(self, workers: Collection[TrackedProcess], now: float) -> list[str]:
        """Return the lines about waits that are long enough to be logged now."""
        lines = []
        joining = [worker for worker in workers if worker.state is WorkerState.JOINING]
        first = min(joining, key=lambda worker: worker.since, default=None)
        if first is not None and now - max(first.since, self._joining_said_at) >= WAIT_EVERY_S:
            self._joining_said_at = now
            lines.append(f"waiting {now - first.since:.0f} s for {first.detail}")
        for worker in workers:
            times = int((now - worker.since) // WAIT_EVERY_S) if worker.state is WorkerState.PREPARING else 0
            if times > self._preparing_said.get((worker.rank, worker.since), 0):
                self._preparing_said[worker.rank, worker.since] = times
                lines.append(f"rank {worker.rank} is preparing: {worker.detail} ({now - worker.since:.0f} s)")
        return lines

    def progress(self, report: WorkerReport, now: float, *, last: bool = False) -> str:
        """Return the progress line, "" if it is too early for one. The first comes immediately.

        `report` is that of rank 0. `last`: return the newest step that was not logged yet, however early it is.
        """
        if not self._unsaid(report) or (not last and self.overdue_s(now) < 0):
            return ""
        steps = report.steps
        assert steps.step is not None
        self._said_at, self._said_step = now, steps.step
        return progress_line(steps.step, steps.rate, report.world, steps.metrics, steps.total)

    def overdue_s(self, now: float) -> float:
        """Return for how many seconds a progress line could have been logged."""
        return now - self._said_at - (PROGRESS_EVERY_TERMINAL_S if self.terminal else PROGRESS_EVERY_S)

    def _unsaid(self, report: WorkerReport) -> bool:
        return report.steps.step not in (None, self._said_step)


def progress_line(
    step: int, rate: float | None, world: int, metrics: Mapping[str, float | None], total: int = 0
) -> str:
    """Return one line, with the loss before the other metrics. `total` is the total number of steps, 0 if unknown."""
    parts = [step_words(step, total), rate_words(rate), f"world {world}", *metric_words(metrics)]
    return " · ".join(filter(None, parts))


def step_words(step: int, total: int) -> str:
    """Return the step, and the total unless it has already been passed."""
    return f"step {step} of {total}" if total >= step and total else f"step {step}"


def rate_words(rate: float | None) -> str:
    """Return the rate, "" if it is unknown or 0; a slow one as seconds per step."""
    if rate is None or rate <= 0:
        return ""
    return f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.1f} s/step"


def metric_words(metrics: Mapping[str, float | None]) -> list[str]:
    """Return the metrics to show, with the loss before the others."""
    names = sorted(metrics, key=lambda name: name != "loss")[:METRICS_SHOWN_MAX]
    return [f"{name} {_number(metrics[name])}" for name in names]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
