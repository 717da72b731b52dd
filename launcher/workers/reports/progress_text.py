"""What people read of a node's workers while they run, from what the workers say (pure).

    step 1200 · 24.1 steps/s · world 3 · loss 0.1234       on the node with rank 0
    waiting 40 s for rank 2 (downloading)                  while workers of this node wait for others
    rank 2 is preparing: downloading (40 s)

Seconds are those of any monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.workers.reports.step_rate import StepRate

WAIT_EVERY_S = 10.0
"""A wait is said after this time, and again each time it has passed."""
PROGRESS_EVERY_TERMINAL_S = 10.0
PROGRESS_EVERY_S = 60.0
RATE_WINDOW_S = 30.0
"""The rate is that of the last reports, not older than this, but of two at least."""
METRICS_SHOWN_MAX = 8


@dataclass(slots=True)
class _OngoingWait:
    """Something that lasts: since when, how often it was said, and what."""

    since: float
    said: int
    text: str


@dataclass
class ProgressFormatter:
    """What is to be said of the workers of one generation on one node."""

    terminal: bool
    _joining: dict[int, _OngoingWait] = field(default_factory=dict)
    _joining_said_at: float = float("-inf")
    _preparing: dict[int, _OngoingWait] = field(default_factory=dict)
    pace: StepRate = field(default_factory=lambda: StepRate(RATE_WINDOW_S))
    _world: int = 0
    _said_step: int | None = None
    _said_at: float = float("-inf")

    # --- what is heard --------------------------------------------------------------------------------------------

    def joining(self, rank: int, missing: str, now: float) -> None:
        """A worker waits for others; `missing` names them, "" once it does not."""
        _keep(self._joining, rank, missing, now)

    def preparing(self, rank: int, what: str, now: float) -> None:
        """A worker prepares something, "" once it does not."""
        _keep(self._preparing, rank, what, now)

    def gone(self, rank: int) -> None:
        """A worker is not heard any more."""
        self._joining.pop(rank, None)
        self._preparing.pop(rank, None)

    def reported(self, step: int, world: int, metrics: Mapping[str, float | None], now: float, total: int = 0) -> None:
        """Rank 0 made a step."""
        self.pace.reported(step, metrics, now, total)
        self._world = world

    # --- what is said ---------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there may be something to say later without another word from a worker."""
        return bool(self._joining or self._preparing or self._unsaid)

    def waits(self, now: float) -> list[str]:
        """The lines about waits that are due."""
        lines = []
        if self._joining:
            first = min(self._joining.values(), key=lambda wait: wait.since)
            waited = now - first.since
            if waited >= WAIT_EVERY_S and now - self._joining_said_at >= WAIT_EVERY_S:
                self._joining_said_at = now
                lines.append(f"waiting {waited:.0f} s for {first.text}")
        for rank, wait in sorted(self._preparing.items()):
            times = int((now - wait.since) // WAIT_EVERY_S)
            if times > wait.said:
                wait.said = times
                lines.append(f"rank {rank} is preparing: {wait.text} ({now - wait.since:.0f} s)")
        return lines

    def progress(self, now: float, *, last: bool = False) -> str:
        """The line of progress, "" if none is due. The first is due at once; `last`: whatever was not said yet is."""
        every_s = PROGRESS_EVERY_TERMINAL_S if self.terminal else PROGRESS_EVERY_S
        if not self._unsaid or (not last and now - self._said_at < every_s):
            return ""
        step = self.pace.step
        assert step is not None
        self._said_at, self._said_step = now, step
        return progress_line(step, self.pace.rate, self._world, self.pace.metrics, self.pace.total)

    def overdue_s(self, now: float) -> float:
        """How long the line of progress could have been said."""
        return now - self._said_at - (PROGRESS_EVERY_TERMINAL_S if self.terminal else PROGRESS_EVERY_S)

    @property
    def _unsaid(self) -> bool:
        return self.pace.step is not None and self.pace.step != self._said_step


def progress_line(
    step: int, rate: float | None, world: int, metrics: Mapping[str, float | None], total: int = 0
) -> str:
    """One line; the loss stands before the other metrics. `total` is how many steps there will be, 0: nobody said."""
    parts = [step_words(step, total), rate_words(rate), f"world {world}", *metric_words(metrics)]
    return " · ".join(filter(None, parts))


def step_words(step: int, total: int) -> str:
    """How far it is. A total that is already passed is none."""
    return f"step {step} of {total}" if total >= step and total else f"step {step}"


def rate_words(rate: float | None) -> str:
    """How fast it is, "" if nobody knows or nothing moves. A slow rate is told in seconds for a step."""
    if rate is None or rate <= 0:
        return ""
    return f"{rate:.1f} steps/s" if rate >= 1 else f"{1 / rate:.1f} s/step"


def metric_words(metrics: Mapping[str, float | None]) -> list[str]:
    """The metrics to be shown; the loss stands before the others."""
    names = sorted(metrics, key=lambda name: name != "loss")[:METRICS_SHOWN_MAX]
    return [f"{name} {_number(metrics[name])}" for name in names]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _keep(waits: dict[int, _OngoingWait], rank: int, text: str, now: float) -> None:
    if not text:
        waits.pop(rank, None)
    elif rank in waits:
        waits[rank].text = text
    else:
        waits[rank] = _OngoingWait(now, 0, text)
