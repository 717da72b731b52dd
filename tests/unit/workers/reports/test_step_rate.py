"""Steps in a second, from what a process reports."""

from __future__ import annotations

import pytest

from launcher.workers.reports.step_rate import METRICS_KEPT_MAX, POINTS_MAX, StepRate


def made(*points: tuple[float, int], window_s: float = 10.0) -> StepRate:
    steps = StepRate(window_s)
    for at, step in points:
        steps.reported(step, {}, at)
    return steps


def test_before_the_second_report_there_is_no_rate() -> None:
    assert made().step is None
    assert made().rate is None
    assert made().rate_at(5.0) is None
    assert made((0.0, 4)).rate is None
    assert made((0.0, 4)).step == 4


def test_the_rate_is_that_of_the_window_and_the_whole_one_that_of_the_start() -> None:
    steps = made((0.0, 0), (10.0, 10), (18.0, 90), (20.0, 110), (22.0, 130))
    assert steps.rate == pytest.approx(10.0)
    assert steps.whole_rate == pytest.approx(130 / 22)
    assert steps.made_at == 22.0


def test_two_reports_that_are_far_apart_still_make_a_rate() -> None:
    assert made((0.0, 1), (100.0, 2)).rate == pytest.approx(0.01)


def test_a_step_that_is_late_by_the_window_and_twice_its_time_is_a_rate_of_nothing() -> None:
    quick, slow = made((0.0, 0), (1.0, 20)), made((0.0, 0), (100.0, 1))
    assert quick.rate_at(10.9) == pytest.approx(20.0)
    assert quick.rate_at(11.1) == 0.0
    assert slow.rate_at(299.0) == pytest.approx(0.01)
    assert slow.rate_at(301.0) == 0.0


def test_who_goes_back_to_an_older_step_begins_anew() -> None:
    steps = made((0.0, 100), (1.0, 110), (2.0, 50), (3.0, 51))
    assert steps.rate == steps.whole_rate == pytest.approx(1.0)


def test_another_word_about_the_same_step_is_no_progress_and_brings_its_metrics() -> None:
    steps = made((0.0, 1), (1.0, 2))
    steps.reported(2, {"loss": 0.5}, 9.0)
    assert steps.made_at == 1.0
    assert steps.metrics == {"loss": 0.5}


def test_a_metric_stays_until_it_is_said_again_and_there_are_not_many() -> None:
    steps = StepRate(10.0)
    steps.reported(1, {"loss": 1.0, "accuracy": 0.5}, 0.0)
    steps.reported(2, {"loss": 0.9}, 1.0)
    assert steps.metrics == {"loss": 0.9, "accuracy": 0.5}
    for step in range(3 * POINTS_MAX):
        steps.reported(step, {f"m{step}": 1.0}, float(step))
    assert len(steps.metrics) == METRICS_KEPT_MAX
