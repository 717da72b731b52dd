"""Until when a node may run workers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic.core.run_deadline import CLOCK_ERROR, KILL_S, NEVER, RunDeadline, margin_s

moments = st.floats(0, 1e6)
held = RunDeadline().refreshed(100.0, 5.0, 120.0)


def test_a_node_without_a_lease_may_run_nothing() -> None:
    assert RunDeadline().until() == NEVER
    assert RunDeadline(ttl_s=5.0, outage_limit_s=120.0).vouched(1000.0).until() == NEVER


def test_the_right_counts_from_the_send_of_the_last_refresh_and_leaves_room_for_a_kill() -> None:
    assert held.until() == 105.0 - margin_s(5.0)
    assert margin_s(5.0) == KILL_S + CLOCK_ERROR * 5.0


def test_a_refresh_prolongs_the_right() -> None:
    assert held.refreshed(101.25, 5.0, 120.0).until() == 106.25 - margin_s(5.0)


def test_an_answer_that_was_overtaken_by_a_later_one_takes_nothing_back() -> None:
    assert held.refreshed(101.25, 5.0, 120.0).refreshed(100.5, 5.0, 120.0).until() == 106.25 - margin_s(5.0)


def test_a_lost_lease_ends_the_right_at_once() -> None:
    assert held.lost().until() == NEVER


def test_a_vouch_outlives_a_lost_lease() -> None:
    assert held.vouched(110.0).lost().until() == 110.0
    assert held.lost().vouched(110.0).until() == 110.0


def test_a_vouch_that_is_shorter_than_the_lease_takes_nothing_away() -> None:
    assert held.vouched(101.0).until() == held.until()


def test_the_longest_vouch_counts() -> None:
    assert held.vouched(130.0).vouched(120.0).until() == 130.0


def test_no_word_of_others_goes_beyond_the_last_refresh_plus_the_lease_plus_the_outage_limit() -> None:
    assert held.vouched(1e9).until() == 100.0 + 5.0 + 120.0
    assert held.lost().vouched(1e9).until() == 225.0


def test_without_an_outage_limit_a_vouch_ends_with_the_leases_time() -> None:
    assert RunDeadline().refreshed(100.0, 5.0, 0.0).lost().vouched(1e9).until() == 105.0


def test_nothing_that_was_granted_for_the_last_world_counts_for_the_next() -> None:
    assert held.vouched(200.0).clear_grants().until() == held.until()
    assert held.vouched(200.0).clear_grants().lost().until() == NEVER


@given(moments, st.floats(1, 600), st.floats(0, 1e4), st.lists(moments, max_size=4))
def test_nobodys_right_ever_goes_beyond_the_last_refresh_plus_lease_plus_outage_limit(
    sent_at: float, ttl_s: float, outage_limit_s: float, vouches: list[float]
) -> None:
    right = RunDeadline().refreshed(sent_at, ttl_s, outage_limit_s)
    for until in vouches:
        right = right.vouched(until)
        assert right.until() <= sent_at + ttl_s + outage_limit_s
        assert right.lost().until() <= right.until()


@given(st.floats(2, 600))
def test_the_margin_leaves_something_of_every_lease_that_may_be_asked_for(ttl_s: float) -> None:
    assert 0 < margin_s(ttl_s) < ttl_s
