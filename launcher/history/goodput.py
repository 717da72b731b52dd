"""Goodput: the share of a period in which steps were made that count (pure).

    goodput = (wall time - time in pauses - time of repeated steps) / wall time

A pause is the time without a step: a first start, from the command to the first step, and each recovery, from the last
step before it (or, if no steps are reported, from the first symptom) to the first step after it. A pause that lasts at
the end counts until then. Pauses that overlap count once. Waiting for nodes is a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple


class PauseInterval(NamedTuple):
    """A time without a step, on any one clock, in seconds; `again_s`: the time of repeated steps after it."""

    began: float
    ended: float
    again_s: float = 0.0


def goodput(began: float, ended: float, pauses: Iterable[PauseInterval]) -> float | None:
    """Return the share, from 0 to 1, of the time from `began` to `ended`; None if no time has passed.

    Parts of a pause outside that time do not count.
    """
    wall = ended - began
    if wall <= 0:
        return None
    lost, counted_to = 0.0, began
    for pause in sorted(pauses):
        start, end = max(pause.began, counted_to), min(pause.ended, ended)
        if end > start:
            lost += end - start
            counted_to = end
        lost += max(pause.again_s, 0.0)
    return max(wall - lost, 0.0) / wall


class _Activity(Enum):
    PAUSED = auto()
    WORKING = auto()
    ASIDE = auto()


class GoodputSums(NamedTuple):
    """Seconds until a moment: `clock_s` that passed, `productive_s` of it in which steps were made that count.

    `again_s`: in which steps were repeated. The rest was a pause, or belongs to a step that is not done yet; `goodput`
    counts that as productive while nothing is wrong.
    """

    clock_s: float
    productive_s: float
    again_s: float
    goodput: float | None


class GoodputMeter:
    """The meter of one agent. Moments are seconds of one clock; nothing here raises on any order of them."""

    def __init__(self, began: float) -> None:
        """`began`: when this agent was started. It is paused until the first step."""
        self._is = _Activity.PAUSED
        self._until = began
        """Everything before this moment is summed up."""
        self._productive_s = self._again_s = self._paused_s = self._shown_s = 0.0
        self._lead: int | None = None
        self._newest: int | None = None
        self._best = -1
        self.steps = self.steps_again = 0
        """The number of completed steps, and of those that were repeats."""
        self.stepped_at: float | None = None

    @property
    def counts_steps(self) -> bool:
        """Whether the running workers have reported a step."""
        return self._newest is not None

    @property
    def step(self) -> int | None:
        """The newest step, even while nothing runs."""
        return self._best if self.stepped_at is not None and self._newest is None else self._newest

    def stepped(self, worker: int, step: int, at: float) -> bool:
        """Note a step. The first worker that reports represents its node, until all stop; return if it was that."""
        if self._lead is None:
            self._lead = worker
        if worker != self._lead or step == self._newest:
            return worker == self._lead
        before, length = self._newest, self._pass(at)
        self._newest, self.stepped_at = step, self._until
        if before is None:
            made, again = 1, int(step <= self._best)
        elif step < before:  # It counts from the beginning, as in each epoch: no step is known to be repeated.
            made, again, self._best = 1, 0, step
        else:
            made, again = step - before, max(min(self._best, step) - before, 0)
        self.steps += made
        self.steps_again += again
        if self._is is _Activity.WORKING:
            again_s = length * again / made if before is not None else 0.0
            self._again_s += again_s
            self._productive_s += length - again_s
        else:
            self._paused_s += length if self._is is _Activity.PAUSED else 0.0
            self._is = _Activity.WORKING
        self._best = max(self._best, step)
        return True

    def back(self, at: float) -> None:
        """Note that a recovery had ended by this moment, as far as is known."""
        if self._is is _Activity.PAUSED and at > self._until:
            self._paused_s += self._pass(at)
            self._is = _Activity.WORKING

    def stopped(self, at: float, *, well: bool = False) -> None:
        """Note that the workers have ended, or something is wrong: since the last step, if any was reported.

        `well`: they have done their work, and the time after the last step was a part of it.
        """
        if self._is is _Activity.WORKING:
            if well or self._newest is None:
                self._productive_s += self._pass(at)
            self._is = _Activity.PAUSED
        self._lead = self._newest = None

    def aside(self, at: float, *, spare: bool) -> None:
        """Note whether this node is a spare while a generation without it trains."""
        if spare and self._is is not _Activity.ASIDE:
            self.stopped(at)
            self._paused_s += self._pass(at)
            self._is = _Activity.ASIDE
        elif not spare and self._is is _Activity.ASIDE:
            self._pass(at)
            self._is = _Activity.PAUSED

    def sums(self, now: float) -> GoodputSums:
        """Return the sums until now. No sum ever decreases."""
        rest = max(now - self._until, 0.0) if self._is is not _Activity.ASIDE else 0.0
        clock = self._productive_s + self._again_s + self._paused_s + rest
        steady = self._is is _Activity.WORKING and self._newest is None
        self._shown_s = max(self._shown_s, self._productive_s + (rest if steady else 0.0))
        lost = self._again_s + self._paused_s + (rest if self._is is _Activity.PAUSED else 0.0)
        return GoodputSums(clock, self._shown_s, self._again_s, max(clock - lost, 0.0) / clock if clock > 0 else None)

    def _pass(self, at: float) -> float:
        """Advance to a moment; return how long that took."""
        length = max(at - self._until, 0.0)
        self._until += length
        return length
