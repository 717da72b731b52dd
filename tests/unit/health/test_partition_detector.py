"""The clock that tells a split network from workers that only take long."""

from __future__ import annotations

from launcher.health.partition_detector import (
    BASELINE_S,
    FIRST_STEP,
    FORMS,
    LOOK_MAX_S,
    NEVER_REACHED,
    PartitionDetector,
)

LIMIT_S = 40.0
B = ("b",)


def waits(at: float = 0.0, known: tuple[str, ...] = B) -> PartitionDetector:
    """Worker 0 waits for others before the group stands."""
    clock = PartitionDetector(LIMIT_S, ("b", "c"), set(known))
    clock.waits(0, at)
    return clock


def steps(*times: float, known: tuple[str, ...] = B) -> PartitionDetector:
    """Worker 0 made steps at these times."""
    clock = PartitionDetector(LIMIT_S, ("b", "c"), set(known))
    clock.formed(0, 0.0)
    for time in times:
        clock.steps(0, time)
    return clock


def looks(clock: PartitionDetector, *times: float, missing: tuple[str, ...] = B) -> PartitionDetector:
    for time in times:
        clock.looked([node for node in ("b", "c") if node not in missing], missing, time)
    return clock


def test_nobody_is_looked_for_before_a_worker_has_said_anything() -> None:
    clock = PartitionDetector(LIMIT_S, B)
    assert clock.look_at is None
    assert looks(clock, 0.0, 1000.0, 2000.0).unreached == ()
    assert clock.given_up(1e9) == []


def test_a_worker_that_waits_is_given_up_at_the_limit_if_a_machine_was_not_reached_for_long() -> None:
    clock = waits()
    assert clock.look_at == 20.0
    assert looks(clock, 20.0).unreached == (), "one look may have been lost"
    assert clock.look_at == 25.0
    assert looks(clock, 25.0).unreached == B
    assert clock.given_up(39.9) == []
    assert clock.given_up(40.0) == [0]


def test_a_machine_that_was_reached_in_between_has_not_been_away_for_long() -> None:
    clock = looks(waits(), 20.0, 25.0)
    clock.looked(["b", "c"], [], 30.0)
    assert clock.unreached == ()
    assert looks(clock, 35.0, 40.0).given_up(40.0) == []
    assert clock.given_up(51.0) == [0]


def test_while_everybody_is_reached_it_is_looked_less_and_less_often() -> None:
    clock, now, pauses = waits(), 20.0, []
    for _ in range(5):
        clock.looked(["b", "c"], [], now)
        assert clock.look_at is not None
        pauses.append(clock.look_at - now)
        now = clock.look_at
    assert pauses == [10.0, 20.0, 30.0, LOOK_MAX_S, LOOK_MAX_S]


def test_who_prepares_here_or_elsewhere_stops_the_clock() -> None:
    clock = waits()
    clock.waits(0, 30.0, prepares=True)
    assert clock.look_at == 50.0
    clock.preparing(1)
    assert clock.look_at is None
    assert looks(clock, 60.0, 70.0, 80.0).given_up(1e9) == []
    clock.ready(1, 100.0)
    assert clock.look_at == 120.0


def test_when_the_group_stands_nobody_is_awaited_until_there_are_steps() -> None:
    clock = looks(waits(known=("b", "c")), 20.0, 25.0)
    clock.formed(0, 30.0)
    assert (clock.unreached, clock.look_at) == ((), None)
    assert looks(clock, 40.0, 50.0, 60.0).given_up(1e9) == []


def test_once_it_stands_it_is_looked_who_can_be_reached_while_all_is_well() -> None:
    clock = steps(known=())
    assert clock.look_at == BASELINE_S
    clock.looked(["b", "c"], [], BASELINE_S)
    assert clock.look_at is None
    assert steps(known=("b", "c")).look_at is None


def test_a_worker_that_made_steps_and_makes_none_is_given_up() -> None:
    clock = steps(1.0, 2.0, known=("b", "c"))
    assert clock.look_at == 22.0
    assert looks(clock, 22.0, 27.0).given_up(42.0) == [0]
    clock.steps(0, 43.0)
    assert clock.unreached == (), "the ways that it needs are open"


def test_a_step_that_takes_as_long_as_others_did_is_no_wait() -> None:
    clock = steps(0.0, 100.0, known=("b", "c"))
    assert clock.look_at == 100.0 + 150.0
    assert looks(clock, 250.0, 260.0, 280.0).given_up(399.0) == []
    assert clock.given_up(400.0) == [0]


def test_a_first_step_may_take_longer() -> None:
    clock = steps(known=("b", "c"))
    clock.restored(0, 10.0)
    assert looks(clock, 90.0, 100.0, 110.0).given_up(10.0 + FIRST_STEP * LIMIT_S - 0.1) == []
    assert clock.given_up(10.0 + FIRST_STEP * LIMIT_S) == [0]


def test_a_machine_that_agents_never_reached_counts_later_once_the_group_stands() -> None:
    clock = steps(1.0, 2.0, known=("c",))
    assert looks(clock, 22.0, 27.0, 42.0).given_up(43.0) == []
    late = 2.0 + NEVER_REACHED * LIMIT_S
    assert looks(clock, late, late + 5.0, late + 20.0).given_up(late + 20.0) == [0]


def test_a_machine_that_was_never_reached_counts_while_the_group_does_not_form() -> None:
    assert looks(waits(known=()), 20.0, 25.0).given_up(40.0) == [0]


def test_once_a_group_stood_a_machine_that_agents_never_reach_counts_later_in_the_next_world_too() -> None:
    met: set[str] = set()
    PartitionDetector(LIMIT_S, ("b", "c"), set(), met).formed(0, 0.0)
    clock = PartitionDetector(LIMIT_S, ("b", "c", "d"), set(), met)
    clock.waits(0, 0.0)
    assert looks(clock, 20.0, 25.0).given_up(LIMIT_S) == [], "a firewall, and a slow start"
    late = NEVER_REACHED * LIMIT_S
    assert looks(clock, late, late + 5.0, late + 20.0).given_up(late + 20.0) == [0]


def test_the_limit_0_switches_the_clock_off() -> None:
    clock = PartitionDetector(0.0, B)
    clock.waits(0, 0.0)
    assert clock.look_at is None
    assert looks(clock, 1.0, 2.0, 3.0).given_up(1e9) == []


def test_a_worker_that_is_gone_is_not_awaited() -> None:
    clock = looks(waits(), 20.0, 25.0)
    clock.gone(0, 30.0)
    assert (clock.look_at, clock.unreached, clock.given_up(1e9)) == (None, (), [])


def test_workers_that_have_met_and_whose_group_does_not_stand_for_long_failed() -> None:
    clock = waits(known=("b", "c"))
    clock.met(0, 30.0)
    assert clock.unformed(30.0 + FORMS * LIMIT_S - 0.1) == []
    assert clock.unformed(30.0 + FORMS * LIMIT_S) == [0]
    clock.formed(0, 100.0)
    assert clock.unformed(1e9) == []


def test_it_is_looked_when_a_group_is_late() -> None:
    clock = waits(known=("b", "c"))
    clock.met(0, 30.0)
    clock.looked(["b", "c"], [], 30.0 + FORMS * LIMIT_S - 1.0)
    assert clock.look_at == 30.0 + FORMS * LIMIT_S
