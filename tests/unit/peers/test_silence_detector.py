"""Which nodes are silent, by the heartbeats that came and the times at which they came; how often those are sent."""

from __future__ import annotations

import pytest

from elastic.core.agent.links.silence import BEATS_MIN
from elastic.core.agent.state import SilentPeer
from launcher.peers.silence_detector import LATENESS_HALF_S, NEVER, UNHEARD_INTERVALS, SilenceDetector

EVERY_S = 0.25
TIMEOUT_S = 1.0
LINK, OTHER = object(), object()


class Watch:
    """A `SilenceDetector`, its clock, and when something else showed that a node is there."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.now = 100.0
        self.otherwise_at: dict[str, float] = {}
        self.detector = SilenceDetector(lambda node: self.otherwise_at.get(node, NEVER))
        self.detector.set_timeout(timeout_s)

    def beats(self, *nodes: str, count: int = BEATS_MIN, link: object = LINK, every_s: float = EVERY_S) -> None:
        """So many heartbeats of these nodes, an interval apart; the last one comes now."""
        for number in range(count):
            self.now += every_s if number else 0.0
            for node in nodes:
                self.detector.beat(node, link, every_s, self.now)

    def later(self, seconds: float) -> bool:
        """Look after this time; whether another node is silent or heard again."""
        self.now += seconds
        return self.detector.check(self.now)[0]

    @property
    def silent(self) -> dict[str, SilentPeer]:
        return dict(self.detector.silent)


# Silence


def test_a_node_is_silent_when_nothing_was_heard_for_its_timeout() -> None:
    watch = Watch()
    watch.beats("a", "b")
    heard_at = watch.now
    assert watch.detector.check(watch.now) == (False, heard_at + TIMEOUT_S)
    assert not watch.later(TIMEOUT_S - 0.125)
    watch.detector.beat("b", LINK, TIMEOUT_S - 0.125, watch.now)
    assert watch.later(0.125)
    assert watch.silent == {"a": SilentPeer(heard_at, TIMEOUT_S, heard_at)}


def test_a_node_that_stays_silent_is_told_once_and_since_when_does_not_change() -> None:
    watch = Watch()
    watch.beats("a")
    heard_at = watch.now
    assert watch.later(TIMEOUT_S)
    assert not watch.later(60.0)
    assert watch.silent == {"a": SilentPeer(heard_at, TIMEOUT_S, heard_at)}


@pytest.mark.parametrize("how", ["beat", "heard"])
def test_a_silent_node_is_heard_again_with_a_heartbeat_or_anything_else(how: str) -> None:
    watch = Watch()
    watch.beats("a", "b")
    watch.later(TIMEOUT_S)
    if how == "beat":
        assert watch.detector.beat("a", LINK, EVERY_S, watch.now)
    else:
        assert watch.detector.heard("a", watch.now)
    assert set(watch.silent) == {"b"}
    assert not watch.detector.heard("a", watch.now), "that is known"


def test_a_node_counts_once_it_has_sent_three_heartbeats() -> None:
    watch = Watch()
    watch.beats("a", count=BEATS_MIN - 1)
    watch.detector.heard("a", watch.now)  # What is no heartbeat does not promise another one.
    watch.beats("b", count=BEATS_MIN)
    assert watch.later(600.0)
    assert set(watch.silent) == {"b"}


def test_the_timeout_is_at_least_three_intervals_of_the_node() -> None:
    watch = Watch(timeout_s=0.5)
    watch.beats("a", every_s=1.0)
    assert not watch.later(BEATS_MIN * 1.0 - 0.125)
    assert watch.later(0.125)
    assert watch.silent["a"].timeout_s == BEATS_MIN * 1.0


def test_without_a_timeout_no_node_is_silent() -> None:
    watch = Watch()
    watch.beats("a")
    watch.later(TIMEOUT_S)
    watch.detector.set_timeout(0.0)
    assert not watch.silent
    assert watch.detector.check(watch.now + 600.0) == (False, float("inf"))
    watch.detector.set_timeout(TIMEOUT_S)
    assert watch.later(0.0), "what came meanwhile is known"


# Lateness


def test_the_lateness_of_a_link_widens_its_timeout() -> None:
    watch = Watch()
    watch.beats("a", "b")
    watch.now += EVERY_S
    watch.detector.beat("b", LINK, EVERY_S, watch.now)
    watch.now += 0.5
    watch.detector.beat("a", LINK, EVERY_S, watch.now)  # 0.5 s late.
    heard_at = watch.now
    assert watch.later(TIMEOUT_S)
    assert set(watch.silent) == {"b"}
    assert watch.later(0.5)
    assert watch.silent["a"] == SilentPeer(heard_at, TIMEOUT_S + 0.5, heard_at)


def test_half_of_the_lateness_is_forgotten_in_its_time() -> None:
    watch = Watch()
    watch.beats("a")
    watch.now += EVERY_S + 0.5
    watch.detector.beat("a", LINK, LATENESS_HALF_S, watch.now)  # From now on the interval is so long.
    watch.now += LATENESS_HALF_S
    watch.detector.beat("a", LINK, EVERY_S, watch.now)
    assert watch.later(TIMEOUT_S + 0.25)
    assert watch.silent["a"].timeout_s == pytest.approx(TIMEOUT_S + 0.25)


def test_a_small_lateness_does_not_replace_a_larger_one() -> None:
    watch = Watch()
    watch.beats("a")
    for late_s in (0.5, 0.125):
        watch.now += EVERY_S + late_s
        watch.detector.beat("a", LINK, EVERY_S, watch.now)
    watch.later(60.0)
    assert watch.silent["a"].timeout_s == pytest.approx(TIMEOUT_S + 0.5, abs=0.02)


def test_a_pause_longer_than_the_timeout_counts_as_a_lateness_of_one_timeout() -> None:
    watch = Watch()
    watch.beats("a")
    watch.now += EVERY_S + 5 * TIMEOUT_S
    watch.detector.beat("a", LINK, EVERY_S, watch.now)
    watch.later(60.0)
    assert watch.silent["a"].timeout_s == pytest.approx(2 * TIMEOUT_S)


# Links


def test_a_node_whose_link_ended_in_order_is_not_silent_and_needs_three_heartbeats_on_its_next_link() -> None:
    watch = Watch()
    watch.beats("a", "b")
    assert not watch.detector.forget("b", LINK)
    watch.later(TIMEOUT_S)
    assert watch.detector.forget("a", LINK)
    assert not watch.silent
    watch.beats("a", count=BEATS_MIN - 1, link=OTHER)
    assert not watch.later(600.0)


def test_the_end_of_a_link_that_another_has_replaced_changes_nothing() -> None:
    watch = Watch()
    watch.beats("a")
    watch.beats("a", link=OTHER)
    assert not watch.detector.forget("a", LINK)
    assert not watch.detector.forget("unknown", LINK)
    assert watch.later(TIMEOUT_S)
    assert set(watch.silent) == {"a"}


def test_a_link_that_replaces_another_counts_after_three_heartbeats_and_has_no_lateness_yet() -> None:
    watch = Watch()
    watch.beats("a")
    watch.now += 5.0
    watch.detector.beat("a", LINK, EVERY_S, watch.now)
    watch.beats("a", count=BEATS_MIN - 1, link=OTHER)
    assert not watch.later(EVERY_S)
    watch.detector.beat("a", OTHER, EVERY_S, watch.now)
    assert watch.later(TIMEOUT_S)
    assert watch.silent["a"].timeout_s == TIMEOUT_S


# This process was held up


def test_a_process_that_was_held_up_restarts_the_silence_of_every_node_and_says_when() -> None:
    watch = Watch()
    watch.beats("a", "b")
    watch.detector.expect_check(watch.now + EVERY_S, EVERY_S)
    assert watch.later(30.0)
    assert not watch.silent
    assert watch.detector.held_up_at == watch.now
    assert not watch.later(TIMEOUT_S - 0.125)
    assert watch.later(0.125)
    assert set(watch.silent) == {"a", "b"}


def test_a_silence_from_before_this_process_was_held_up_restarts_too() -> None:
    watch = Watch()
    watch.beats("a")
    watch.later(TIMEOUT_S)
    watch.detector.expect_check(watch.now, EVERY_S)
    assert watch.later(5.0)
    assert not watch.silent


def test_a_silence_that_was_restarted_begins_later_than_the_node_was_heard() -> None:
    watch = Watch()
    watch.beats("a")
    heard_at = watch.now
    watch.detector.expect_check(watch.now, EVERY_S)
    watch.now += 30.0
    watch.detector.check(watch.now)
    restarted_at = watch.now
    watch.detector.expect_check(float("inf"), 0.0)
    assert watch.later(TIMEOUT_S)
    assert watch.silent["a"] == SilentPeer(restarted_at, TIMEOUT_S, heard_at)


@pytest.mark.parametrize("how", ["beat", "heard"])
def test_what_comes_first_after_it_was_held_up_shows_it_and_is_not_late(how: str) -> None:
    watch = Watch()
    watch.beats("a", "b")
    watch.detector.expect_check(watch.now + EVERY_S, EVERY_S)
    watch.now += 30.0
    if how == "beat":
        assert watch.detector.beat("a", LINK, EVERY_S, watch.now)
    else:
        assert watch.detector.heard("a", watch.now)
    assert watch.detector.held_up_at == watch.now
    assert not watch.detector.beat("b", LINK, EVERY_S, watch.now), "it is reported once"
    watch.later(TIMEOUT_S)
    assert {node: one.timeout_s for node, one in watch.silent.items()} == {"a": TIMEOUT_S, "b": TIMEOUT_S}


def test_a_check_that_is_not_later_than_its_slack_was_not_held_up() -> None:
    watch = Watch()
    watch.beats("a")
    watch.detector.expect_check(watch.now + 2.0, EVERY_S)
    assert watch.later(2.0 + EVERY_S)
    assert set(watch.silent) == {"a"}
    assert watch.detector.held_up_at == NEVER


# Other signs of life


def test_a_step_counts_as_heard() -> None:
    watch = Watch()
    watch.beats("a", "b")
    watch.now += TIMEOUT_S
    watch.otherwise_at["a"] = watch.now - 0.25
    assert watch.later(0.0)
    assert set(watch.silent) == {"b"}
    assert watch.later(TIMEOUT_S - 0.25)
    assert watch.silent["a"].since == watch.otherwise_at["a"]


def test_a_step_of_a_silent_node_clears_it_with_the_next_check() -> None:
    watch = Watch()
    watch.beats("a")
    watch.later(TIMEOUT_S)
    watch.otherwise_at["a"] = watch.now
    assert watch.later(0.125)
    assert not watch.silent


def test_a_node_is_unheard_after_some_intervals_long_before_it_is_silent() -> None:
    watch = Watch()
    watch.beats("a", "b", count=1)
    watch.now += UNHEARD_INTERVALS * EVERY_S
    watch.detector.heard("b", watch.now)
    assert watch.detector.unheard(watch.now) == frozenset()
    assert watch.detector.unheard(watch.now + 0.125) == {"a"}
    assert not watch.silent


def test_a_node_that_has_not_sent_a_heartbeat_yet_is_unheard_after_some_intervals_and_never_silent() -> None:
    watch = Watch()
    watch.detector.expect_beats("a", LINK, EVERY_S, watch.now)
    watch.now += UNHEARD_INTERVALS * EVERY_S
    watch.detector.expect_beats("a", LINK, EVERY_S, watch.now)  # One more was sent, and that is no answer.
    assert watch.detector.unheard(watch.now) == frozenset()
    assert watch.detector.unheard(watch.now + 0.125) == {"a"}
    assert not watch.later(10 * TIMEOUT_S)
    assert watch.detector.forget("a", LINK) is False
    assert watch.detector.unheard(watch.now) == frozenset()


def test_the_first_heartbeat_is_not_late() -> None:
    watch = Watch()
    watch.detector.expect_beats("a", LINK, EVERY_S, watch.now)
    watch.now += TIMEOUT_S
    watch.beats("a")
    assert watch.detector.check(watch.now) == (False, watch.now + TIMEOUT_S)


def test_a_heartbeat_sent_over_a_new_link_does_not_end_a_silence() -> None:
    watch = Watch()
    watch.beats("a")
    watch.later(TIMEOUT_S)
    watch.detector.expect_beats("a", OTHER, EVERY_S, watch.now)
    assert not watch.later(0.0)
    assert watch.silent.keys() == {"a"}
