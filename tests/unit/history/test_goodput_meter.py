"""The goodput of one node, told step by step: the same as the definition, which knows all pauses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.history.goodput import GoodputMeter, PauseInterval, goodput


def meter_with_steps(*steps: tuple[int, float], began: float = 0.0) -> GoodputMeter:
    made = GoodputMeter(began)
    for step, at in steps:
        made.stepped(0, step, at)
    return made


def test_until_the_first_step_nothing_is_productive() -> None:
    sums = GoodputMeter(10.0).sums(20.0)
    assert (sums.clock_s, sums.productive_s, sums.goodput) == (10.0, 0.0, 0.0)


def test_no_time_has_no_goodput() -> None:
    assert GoodputMeter(10.0).sums(10.0).goodput is None


def test_steps_after_the_first_are_productive() -> None:
    sums = meter_with_steps((1, 4.0), (2, 5.0), (10, 10.0)).sums(10.0)
    assert (sums.productive_s, sums.again_s, sums.goodput) == (6.0, 0.0, 0.6)


def test_a_step_that_is_not_done_yet_counts_as_good_in_the_share_and_not_in_the_counter() -> None:
    sums = meter_with_steps((1, 4.0), (2, 5.0)).sums(10.0)
    assert (sums.productive_s, sums.goodput) == (1.0, 0.6)


def test_a_pause_is_counted_from_the_last_step_and_to_the_next() -> None:
    meter = meter_with_steps((1, 0.0), (2, 4.0))
    meter.stopped(6.0)
    meter.stepped(0, 3, 8.0)
    assert meter.sums(10.0).goodput == pytest.approx(0.6)
    assert meter.sums(10.0).goodput == goodput(0.0, 10.0, [PauseInterval(4.0, 8.0)])


def test_what_follows_the_last_step_of_workers_that_end_well_is_their_work() -> None:
    meter = meter_with_steps((1, 0.0), (2, 4.0))
    meter.stopped(6.0, well=True)
    assert meter.sums(10.0).productive_s == 6.0


def test_steps_that_are_made_again_are_not_productive() -> None:
    meter = meter_with_steps((0, 0.0), (10, 10.0))
    meter.stopped(10.0)
    meter.stepped(0, 5, 12.0)
    meter.stepped(0, 15, 22.0)  # 6 to 10 again, 11 to 15 anew
    sums = meter.sums(22.0)
    assert (sums.productive_s, sums.again_s) == (15.0, 5.0)
    assert (meter.steps, meter.steps_again) == (1 + 10 + 1 + 10, 1 + 5)
    assert sums.goodput == goodput(0.0, 22.0, [PauseInterval(10.0, 12.0, again_s=5.0)])


def test_a_script_that_counts_the_steps_of_each_epoch_makes_none_again() -> None:
    meter = meter_with_steps((0, 0.0), (10, 10.0), (1, 11.0), (10, 20.0))
    assert meter.sums(20.0).again_s == 0.0
    assert meter.steps_again == 0


def test_only_one_worker_speaks_for_its_node() -> None:
    meter = GoodputMeter(0.0)
    assert meter.stepped(1, 5, 1.0)
    assert not meter.stepped(0, 4, 1.5)
    assert (meter.step, meter.steps) == (5, 1)
    meter.stopped(2.0)
    assert meter.stepped(0, 6, 3.0)


def test_the_newest_step_is_known_while_nothing_runs() -> None:
    meter = meter_with_steps((1, 4.0), (2, 5.0))
    meter.stopped(6.0)
    assert (meter.step, meter.stepped_at, meter.counts_steps) == (2, 5.0, False)


def test_without_steps_a_node_is_productive_from_the_end_of_its_recovery_to_the_first_sign() -> None:
    meter = GoodputMeter(0.0)
    meter.back(4.0)
    assert meter.sums(6.0).productive_s == 2.0
    meter.stopped(9.0)
    assert meter.sums(10.0) == (10.0, 5.0, 0.0, 0.5)


def test_a_recovery_that_was_over_before_the_next_one_began_changes_nothing() -> None:
    meter = meter_with_steps((1, 4.0), (2, 5.0))
    meter.stopped(6.0)
    meter.back(4.0)
    assert meter.sums(10.0).goodput == pytest.approx(0.1)


def test_the_time_of_a_spare_is_not_counted() -> None:
    meter = GoodputMeter(0.0)
    meter.aside(2.0, spare=True)
    meter.aside(3.0, spare=True)
    assert meter.sums(50.0).clock_s == 2.0
    meter.aside(100.0, spare=False)
    meter.stepped(0, 7, 101.0)
    meter.stepped(0, 8, 102.0)
    assert meter.sums(102.0) == (4.0, 1.0, 0.0, 0.25)


moments = st.floats(0.0, 1e3)
happenings = st.one_of(
    st.tuples(st.just("stepped"), st.integers(0, 3), st.integers(0, 50), moments),
    st.tuples(st.just("stopped"), st.booleans(), moments),
    st.tuples(st.just("back"), moments),
    st.tuples(st.just("aside"), st.booleans(), moments),
)


@given(st.lists(happenings, max_size=20))
def test_no_sum_ever_falls_and_the_goodput_is_a_share_whatever_happens(told: list[tuple[object, ...]]) -> None:
    meter, now, before = GoodputMeter(0.0), 0.0, (0.0, 0.0, 0.0)
    for what, *values in told:
        at = values[-1]
        assert isinstance(at, float)
        now = max(now, at)
        match what:
            case "stepped":
                meter.stepped(int(str(values[0])), int(str(values[1])), at)
            case "stopped":
                meter.stopped(at, well=bool(values[0]))
            case "back":
                meter.back(at)
            case _:
                meter.aside(now, spare=bool(values[0]))
        sums = meter.sums(now)
        assert all(new >= old - 1e-9 for new, old in zip(sums[:3], before, strict=True))
        assert sums.productive_s + sums.again_s <= sums.clock_s + 1e-9
        assert sums.goodput is None or 0.0 <= sums.goodput <= 1.0 + 1e-9
        before = sums[:3]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8))
def test_it_is_the_goodput_of_the_definition(lives: list[tuple[int, int, int]]) -> None:
    """Each life: a pause, so many steps of one second, and a silence before somebody notices."""
    meter, now, step, pauses, paused_since = GoodputMeter(0.0), 0.0, 0, list[PauseInterval](), 0.0
    for pause, steps, silence in lives:
        now += pause
        pauses.append(PauseInterval(paused_since, now))
        for _ in range(steps):
            meter.stepped(0, step, now)
            step, paused_since = step + 1, now
            now += 1.0
        meter.stopped(now + silence - 1.0)
        now += silence
    pauses.append(PauseInterval(paused_since, now))
    assert meter.sums(now).goodput == pytest.approx(goodput(0.0, now, pauses))
