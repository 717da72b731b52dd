"""The training curve, for users: a few hundred points of step, loss and rate, over all generations (pure).

It is bounded however long a job trains: points that follow each other in less than `spacing_s` are merged, and when
there are too many every second one is dropped and the spacing doubles. So they stay evenly spread, and the newest is
kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Final

import msgspec

from elastic._decode import UNREADABLE
from launcher.history.events import At

POINTS_MAX: Final = 256
NAMES_MAX: Final = 4
"""Metrics in addition to the loss: the first that are reported."""
NAME_MAX: Final = 64
SPACING_S: Final = 1.0
"""Between the points of a job that has just begun."""
NEAR: Final = 0.9
"""A point that comes a little early keeps its place."""

_Steps = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class CurvePoint(msgspec.Struct, frozen=True, array_like=True):
    """Step `step` was made in generation `g`, received at `at`, the wall clock of the node with rank 0.

    `loss` and `rate` (steps per second) are None if they are not known, or the loss is not finite. `metrics` are the
    values of `TrainingCurve.names`; it can be shorter.
    """

    step: _Steps
    at: At
    g: int
    loss: float | None = None
    rate: float | None = None
    metrics: Annotated[tuple[float | None, ...], msgspec.Meta(max_length=NAMES_MAX)] = ()


class TrainingCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The points of a job so far, in the order of its generations; `names` are those of their metrics."""

    spacing_s: Annotated[float, msgspec.Meta(gt=0, le=1e12)] = SPACING_S
    names: Annotated[
        tuple[Annotated[str, msgspec.Meta(max_length=NAME_MAX)], ...], msgspec.Meta(max_length=NAMES_MAX)
    ] = ()
    points: Annotated[tuple[CurvePoint, ...], msgspec.Meta(max_length=2 * POINTS_MAX)] = ()


def add(course: TrainingCurve, point: CurvePoint, metrics: Mapping[str, float | None]) -> TrainingCurve:
    """Return the curve with another point, which has these metrics; a point too near to its predecessor is dropped.

    Its rate is that since the newest point of its generation that is not too near. After the wall clock was set back it
    is not known until there are two points by the new time.
    """
    names = _joined(course.names, metrics)
    values = tuple(metrics.get(name) for name in names)
    point = msgspec.structs.replace(point, metrics=values, rate=_rate(course, point))
    points = course.points
    if len(points) > 1:
        before, last = points[-2:]
        near = 0 <= last.at - before.at < NEAR * course.spacing_s  # A wall clock can go back.
        if before.g == last.g == point.g and near:
            points = points[:-1]
    return _fitted(course.spacing_s, names, (*points, point))


def merge(one: TrainingCurve, other: TrainingCurve) -> TrainingCurve:
    """Return the points of two writers, merged in the order of generations and times."""
    names = _joined(one.names, other.names)
    points = {*_renamed(one, names), *_renamed(other, names)}
    return _fitted(
        max(one.spacing_s, other.spacing_s), names, sorted(points, key=lambda point: (point.g, point.at, point.step))
    )


def write(course: TrainingCurve) -> bytes:
    """Return the document of a curve."""
    return msgspec.json.encode(course)


def read(document: bytes) -> TrainingCurve | None:
    """Return the curve of a document, None if it cannot be parsed."""
    try:
        return _DECODER.decode(document)
    except UNREADABLE:
        return None


def _rate(course: TrainingCurve, point: CurvePoint) -> float | None:
    rate = None
    for base in reversed(course.points):
        if base.g != point.g or base.step >= point.step or base.at >= point.at:
            break
        rate = float(f"{(point.step - base.step) / (point.at - base.at):.4g}")
        if point.at - base.at >= course.spacing_s / 2:
            break
    return rate


def _joined(names: Sequence[str], more: Iterable[str]) -> tuple[str, ...]:
    new = (name for name in more if name not in names and name != "loss" and len(name) <= NAME_MAX)
    return (*names, *islice(new, NAMES_MAX - len(names)))


def _renamed(course: TrainingCurve, names: Sequence[str]) -> list[CurvePoint]:
    """Return the points of a curve with the metrics of these names, in their order."""
    if course.names == names[: len(course.names)]:
        return list(course.points)
    found = []
    for point in course.points:
        values = dict(zip(course.names, point.metrics, strict=False))
        found.append(msgspec.structs.replace(point, metrics=tuple(values.get(name) for name in names)))
    return found


def _fitted(spacing_s: float, names: tuple[str, ...], points: Sequence[CurvePoint]) -> TrainingCurve:
    while len(points) > POINTS_MAX:
        points = (*points[:-1:2], points[-1])
        spacing_s = min(2 * spacing_s, 1e12)
    return TrainingCurve(spacing_s=spacing_s, names=names, points=tuple(points))


_DECODER: Final = msgspec.json.Decoder(TrainingCurve)
