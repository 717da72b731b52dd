"""Goodput: the share of a stretch of time in which steps were made that count (pure).

    goodput = (wall time - time in pauses - time of steps that were made again) / wall time

A pause is the time without a step: a first start, from the command to the first step, and each recovery, from the last
step before it (or, where no steps are reported, from the first sign that something is wrong) to the first step after
it. What is still paused at the end is a pause until then. Pauses that overlap count once. Waiting for nodes is a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Pause(NamedTuple):
    """A time without a step, on any one clock, in seconds; `again_s`: so long steps were made again after it."""

    began: float
    ended: float
    again_s: float = 0.0


def goodput(began: float, ended: float, pauses: Iterable[Pause]) -> float | None:
    """The share, from 0 to 1, of the time from `began` to `ended`; None if no time has passed.

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
