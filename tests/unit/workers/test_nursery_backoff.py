"""Nurseries that die again and again."""

from __future__ import annotations

from launcher.workers.nursery_watchdog import DEATHS_MAX, LASTED_S, NurseryBackoff


def test_the_first_is_replaced_at_once_the_next_after_pauses_that_double_and_then_none() -> None:
    deaths = NurseryBackoff()
    assert [deaths.died(1.0) for _ in range(DEATHS_MAX + 1)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, None]


def test_one_that_lasted_begins_a_new_row() -> None:
    deaths = NurseryBackoff()
    assert [deaths.died(lived_s) for lived_s in (0.1, 0.1, LASTED_S, 0.1)] == [0.0, 0.5, 0.0, 0.5]
