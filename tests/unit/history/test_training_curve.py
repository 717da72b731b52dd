"""The course of training: few points, evenly spread, of all who wrote it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.history.training_curve import NAMES_MAX, POINTS_MAX, CurvePoint, TrainingCurve, add, merge, read, write


def trained(count: int, every_s: float = 1.0, *, g: int = 1, began: float = 0.0) -> TrainingCurve:
    """A course of steps from 1 on."""
    course = TrainingCurve()
    for number in range(count):
        course = add(course, CurvePoint(number + 1, began + number * every_s, g, 1 / (number + 1)), {})
    return course


def steps(course: TrainingCurve) -> list[int]:
    return [point.step for point in course.points]


def test_a_short_course_has_every_point_and_its_rate() -> None:
    course = trained(4, 2.0)
    assert steps(course) == [1, 2, 3, 4]
    assert [point.rate for point in course.points] == [None, 0.5, 0.5, 0.5]


def test_of_points_that_are_too_near_the_newest_is_there() -> None:
    course = trained(100, 0.005)
    assert steps(course) == [1, 100]
    assert course.points[-1].rate == pytest.approx(200)


def test_a_long_course_keeps_few_points_that_are_evenly_spread_from_its_first_to_its_newest() -> None:
    course = trained(10_000)
    assert POINTS_MAX / 2 <= len(course.points) <= POINTS_MAX
    assert (steps(course)[0], steps(course)[-1]) == (1, 10_000)
    gaps = {after.at - before.at for before, after in zip(course.points[:-2], course.points[1:-1], strict=True)}
    assert max(gaps) <= 2 * min(gaps)


def test_a_course_goes_on_after_the_wall_clock_was_set_back() -> None:
    course = trained(4, began=1000.0)
    for number in range(4):
        course = add(course, CurvePoint(5 + number, 100.0 + number, 1), {})
    assert steps(course) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [point.rate for point in course.points[4:]] == [None, 1.0, 1.0, 1.0]


def test_each_generation_begins_with_a_point_of_its_own() -> None:
    course = trained(3)
    course = add(course, CurvePoint(2, 2.1, 2), {})
    assert [(point.g, point.step) for point in course.points] == [(1, 1), (1, 2), (1, 3), (2, 2)]
    assert course.points[-1].rate is None, "it went back"


def test_the_first_few_metrics_that_are_reported_are_kept_under_their_names() -> None:
    course = add(TrainingCurve(), CurvePoint(1, 0.0, 1, 0.5), {"loss": 0.5, "accuracy": 0.25})
    course = add(course, CurvePoint(2, 5.0, 1, 0.4), {"lr": 0.1, **{f"m{number}": 1.0 for number in range(9)}})
    assert course.names == ("accuracy", "lr", "m0", "m1")
    assert len(course.names) == NAMES_MAX
    assert [point.metrics for point in course.points] == [(0.25,), (None, 0.1, 1.0, 1.0)]


def test_two_writers_know_together_what_each_of_them_knows() -> None:
    one = add(TrainingCurve(), CurvePoint(5, 10.0, 1), {"a": 1.0})
    other = add(add(one, CurvePoint(6, 12.0, 1), {"a": 2.0}), CurvePoint(6, 30.0, 2), {"a": 3.0, "b": 4.0})
    third = add(TrainingCurve(), CurvePoint(7, 20.0, 1), {"c": 9.0})
    both = merge(other, third)
    assert [(point.g, point.step) for point in both.points] == [(1, 5), (1, 6), (1, 7), (2, 6)]
    assert both.names == ("a", "b", "c")
    assert both.points[2].metrics == (None, None, 9.0)
    assert merge(both, other) == both


def test_a_document_reads_back_and_rubbish_is_none() -> None:
    course = add(TrainingCurve(), CurvePoint(5, 10.0, 1, math.nan), {"a": 1.0})
    found = read(write(course))
    assert found is not None
    assert found.points == (CurvePoint(5, 10.0, 1, None, None, (1.0,)),)
    for rubbish in (b"", b"\xff", b"[]", b'{"spacing_s":0}', b'{"points":[[1,1e300,1]]}', b"[" * 5000):
        assert read(rubbish) is None


@given(
    st.lists(st.tuples(st.integers(0, 2**62), st.floats(0, 2e9), st.integers(-5, 5)), max_size=600),
    st.dictionaries(st.text(max_size=80), st.none() | st.floats(), max_size=8),
)
def test_it_keeps_its_bound_whatever_comes(points: list[tuple[int, float, int]], metrics: dict[str, float]) -> None:
    course = TrainingCurve()
    for step, at, g in points:
        course = add(course, CurvePoint(step, at, g), metrics)
    assert len(course.points) <= POINTS_MAX
    assert read(write(course)) is not None
    assert not points or course.points[-1].step == points[-1][0]
