"""Steps and metrics of one process, as it reports them, and the rate of its steps (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice

POINTS_MAX = 400
METRICS_KEPT_MAX = 64


class StepRate:
    """What was reported since one start. Seconds are those of any monotonic clock."""

    def __init__(self, window_s: float) -> None:
        """The rate is that of the last reports, not older than `window_s`, but of at least two."""
        self.metrics: Mapping[str, float | None] = {}
        """The newest value of each metric. One that is not reported again, like one per epoch, stays as it was."""
        self.total = 0
        """The total number of steps, 0 if no process reported it."""
        self._window_s = window_s
        self._points: deque[tuple[float, int]] = deque(maxlen=POINTS_MAX)
        self._first: tuple[float, int] | None = None

    def reported(self, step: int, metrics: Mapping[str, float | None], now: float, total: int = 0) -> None:
        """Note a step."""
        if self._points and step < self._points[-1][1]:
            self._points.clear()  # It rolled back to an older state: the steps in between give no rate.
            self._first = None
        if not self._points or step != self._points[-1][1]:  # Another report of the same step is no progress.
            while len(self._points) > 1 and now - self._points[0][0] > self._window_s:
                self._points.popleft()
            self._points.append((now, step))
            self._first = self._first or (now, step)
        before = {name: number for name, number in self.metrics.items() if name not in metrics}
        self.metrics = dict(islice({**metrics, **before}.items(), METRICS_KEPT_MAX))
        self.total = total

    @property
    def step(self) -> int | None:
        """The newest step, None before the first."""
        return self._points[-1][1] if self._points else None

    @property
    def made_at(self) -> float | None:
        """The time of that step."""
        return self._points[-1][0] if self._points else None

    @property
    def rate(self) -> float | None:
        """Steps per second over the last reports; None before the second one."""
        return _between(self._points[0], self._points[-1]) if self._points else None

    @property
    def whole_rate(self) -> float | None:
        """Steps per second between the first report and the last."""
        return _between(self._first, self._points[-1]) if self._first is not None else None

    def rate_at(self, now: float) -> float | None:
        """Return the rate at this time: 0.0 when the next step is late by the window and by twice its usual time."""
        rate = self.rate
        if rate is not None and now - self._points[-1][0] > max(self._window_s, 2 / rate):
            return 0.0
        return rate


def _between(first: tuple[float, int], last: tuple[float, int]) -> float | None:
    seconds, steps = last[0] - first[0], last[1] - first[1]
    return steps / seconds if seconds > 0 and steps > 0 else None
