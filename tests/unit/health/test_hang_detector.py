"""The clock that notices workers which make no steps any more."""

from __future__ import annotations

from launcher.health.hang_detector import HangDetector


def reported(*steps: tuple[int, int, float], limit_s: float = 10.0) -> HangDetector:
    clock = HangDetector(limit_s)
    for local_rank, step, at in steps:
        clock.reported(local_rank, step, at)
    return clock


def test_before_the_first_report_nobody_is_late() -> None:
    clock = HangDetector(10.0)
    assert clock.due_at is None
    assert clock.late(1e9) == []


def test_a_worker_that_reports_within_the_limit_is_never_late() -> None:
    clock = reported((0, 1, 0.0), (0, 2, 9.9))
    assert clock.late(19.8) == []
    assert clock.due_at == 19.9


def test_a_worker_is_late_at_the_limit_and_not_before() -> None:
    clock = reported((0, 7, 5.0))
    assert clock.late(14.9) == []
    assert clock.late(15.0) == [(0, 7)]


def test_a_worker_that_never_reported_is_not_awaited_beside_one_that_did() -> None:
    assert reported((1, 3, 0.0)).late(10.0) == [(1, 3)]


def test_the_one_that_is_furthest_behind_comes_first_though_it_reported_last() -> None:
    assert reported((0, 9, 0.0), (1, 8, 0.1), (2, 9, 0.2)).late(10.0) == [(1, 8), (0, 9), (2, 9)]


def test_a_worker_that_reported_much_later_is_not_late_with_the_first() -> None:
    assert reported((0, 9, 0.0), (1, 40, 5.0)).late(10.0) == [(0, 9)]


def test_the_limit_0_switches_the_clock_off() -> None:
    clock = reported((0, 1, 0.0), limit_s=0.0)
    assert clock.due_at is None
    assert clock.late(1e9) == []


def test_a_preparation_suspends_the_clock_of_all_until_it_is_over() -> None:
    clock = reported((0, 1, 0.0), (1, 1, 0.0))
    clock.preparing(1)
    assert clock.late(1e9) == []
    clock.ready(1, 100.0)
    assert clock.due_at == 110.0
    assert clock.late(109.0) == []


def test_two_preparations_suspend_the_clock_until_both_are_over() -> None:
    clock = reported((0, 1, 0.0), (1, 1, 0.0))
    clock.preparing(0)
    clock.preparing(1)
    clock.ready(0, 50.0)
    assert clock.due_at is None
    clock.ready(1, 60.0)
    assert clock.due_at == 70.0


def test_ready_without_a_preparation_changes_nothing() -> None:
    clock = reported((0, 1, 0.0))
    clock.ready(0, 9.0)
    assert clock.due_at == 10.0


def test_a_worker_that_has_ended_is_not_awaited_and_its_preparation_is_over() -> None:
    clock = reported((0, 1, 0.0), (1, 1, 3.0))
    clock.preparing(0)
    clock.gone(0, 20.0)
    assert clock.due_at == 30.0
    clock.gone(1, 25.0)
    assert clock.due_at is None
