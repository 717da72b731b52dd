"""The size of an elastic Job of Kubernetes, for launcher/k8s/autoscaler.py: pure."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from elastic._text import counted

PATIENCE_S = 300.0
"""A cloud needs some minutes for a machine, longer with GPUs."""
AGAIN_S = 900.0
WANTED: Final = "elastic-launch/nodes"
DIGITS_MAX = 10
"""The largest number of digits of a number in an annotation, as in Kubernetes."""


@dataclass(frozen=True, slots=True)
class ScalingView:
    """The Job and its pods. `running`, `waiting` and `done` are indexes; waiting pods have no machine to run on.

    An index that is done, because its pod completed or failed for good, gets no further pod.
    """

    size: int
    running: frozenset[int] = frozenset()
    waiting: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    wanted: str = ""
    ended: bool = False
    suspended: bool = False


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """The minimum and maximum number of pods, how long one may wait for a machine, and when to request it again."""

    low: int
    high: int
    patience_s: float = PATIENCE_S
    again_s: float = AGAIN_S


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """Since when an index waits, since when one is done, and when pods were removed last."""

    since: Mapping[int, float] = field(default_factory=dict)
    taken_back: float | None = None
    done: Mapping[int, float] = field(default_factory=dict)
    drained: frozenset[int] = frozenset()
    """Done, while others ran for the time of patience: the job was not over."""
    idle: float | None = None
    """Since when some are done and none runs."""


@dataclass(frozen=True, slots=True)
class KeepSize:
    """Change nothing before `until`, unless the Job or its pods change."""

    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class ResizeJob:
    """Set the number of pods."""

    size: int
    reason: str


def decide(
    view: ScalingView, memory: ScalingMemory, policy: ScalingPolicy, now: float
) -> tuple[KeepSize | ResizeJob, ScalingMemory]:
    """Return what to do with the Job, and what to remember of it. Only the last pods are removed: others would move."""
    memory = _remembered(view, memory, policy, now)
    since = memory.since
    if view.ended:
        return KeepSize("it has ended"), ScalingMemory()
    if view.suspended:
        return KeepSize("it is suspended"), memory
    if memory.idle is not None and not view.done <= memory.drained:
        return _at_the_end(view, max(memory.idle, *memory.done.values()) + policy.patience_s, now), memory
    if view.wanted:
        return _as_wanted(view, policy), memory
    if not policy.low <= view.size <= policy.high:
        size = _open(view, min(max(view.size, policy.low), policy.high))
        if size != view.size:
            return ResizeJob(size, f"--np allows {policy.low} to {policy.high}"), memory

    given_up = {index for index, start in since.items() if now - start >= policy.patience_s}
    if smaller := _kept(view, given_up, policy.low):
        reason = f"{counted(view.size - smaller, 'pod')} found no machine in {policy.patience_s:g} s"
        return ResizeJob(smaller, reason), replace(memory, taken_back=now)
    if since:
        later = [start + policy.patience_s for index, start in since.items() if index not in given_up]
        return KeepSize(f"{counted(len(since), 'pod')} without a machine", min(later, default=None)), memory
    certain_at = max(memory.done.values(), default=now) + policy.patience_s
    if view.done and now < certain_at:  # The others may also be about to complete.
        return KeepSize(_completed(view), certain_at), memory
    if len(view.running | view.done) < view.size:
        return KeepSize(f"{len(view.running)} of {counted(view.size, 'pod')} running"), memory
    state = f"all {counted(view.size, 'pod')} running"
    if view.done:  # Drained by hand: their indexes are used up.
        state = f"{len(view.running)} of {counted(view.size, 'pod')} running, the others ended"
    if view.size >= policy.high:
        return KeepSize(f"{state}, the maximum"), memory
    if memory.taken_back is not None and now < memory.taken_back + policy.again_s:
        until = memory.taken_back + policy.again_s
        return KeepSize(f"{state}; no machine was available for more", until), memory
    return ResizeJob(policy.high, state), memory


def _remembered(view: ScalingView, memory: ScalingMemory, policy: ScalingPolicy, now: float) -> ScalingMemory:
    done = {index: memory.done.get(index, now) for index in view.done}
    drained = memory.drained & view.done
    if view.running:
        drained |= {index for index, at in done.items() if now - at >= policy.patience_s}
    idle = None
    if view.done and not view.running and not view.suspended:
        idle = memory.idle if memory.idle is not None else now
    since = {index: memory.since.get(index, now) for index in view.waiting if index < view.size}
    return replace(memory, since=since, done=done, drained=drained, idle=idle)


def _as_wanted(view: ScalingView, policy: ScalingPolicy) -> KeepSize | ResizeJob:
    try:
        number = int(view.wanted) if len(view.wanted) <= DIGITS_MAX else None
    except ValueError:
        number = None
    if number is None:
        return KeepSize(f"the annotation {WANTED} is {view.wanted[:40]!r}, not a number; write one, or remove it")
    allowed = min(max(number, policy.low), policy.high)
    size = _open(view, allowed)
    within = "" if allowed == number else f", and --np allows {policy.low} to {policy.high}"
    within += "" if size == allowed else f", and the first {allowed} have ended"
    reason = f"the annotation {WANTED} is {number}{within}"
    return KeepSize(reason) if size == view.size else ResizeJob(size, reason)


def _at_the_end(view: ScalingView, certain_at: float, now: float) -> KeepSize | ResizeJob:
    """Some nodes have done their work and none runs: no pod is added or waited for, whatever is wanted."""
    kept = _kept(view, view.waiting, 0)
    if not kept:
        return KeepSize(_completed(view))
    if now < certain_at:  # They may have been drained before the first look, while the others have no machines.
        return KeepSize(f"{_completed(view)}, and none runs", certain_at)
    return ResizeJob(kept, "the others have ended")


def _completed(view: ScalingView) -> str:
    return f"{len(view.done)} of {counted(view.size, 'pod')} ended"


def _kept(view: ScalingView, given_up: Set[int], low: int) -> int:
    """Return how many remain without those that are given up, from the end on; 0 if none is removed.

    `low` of the unfinished ones stay: a Job whose indexes are all done is complete.
    """
    kept, open_ = view.size, view.size - len(view.done)
    while open_ > low and kept - 1 in given_up:
        kept, open_ = kept - 1, open_ - 1
    return kept if kept < view.size else 0


def _open(view: ScalingView, size: int) -> int:
    """Return the size, or the minimum that keeps the Job from being complete before its work is done."""
    return max(size, 1 + next((index for index in range(view.size) if index not in view.done), -1))
