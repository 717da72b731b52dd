"""Goodput: which time counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.history.goodput import PauseInterval, goodput


def test_without_a_pause_all_time_counts() -> None:
    assert goodput(10.0, 20.0, ()) == 1.0


def test_no_time_has_no_goodput() -> None:
    assert goodput(10.0, 10.0, ()) is None


@pytest.mark.parametrize(
    ("pauses", "share"),
    [
        ([PauseInterval(0.0, 1.0)], 0.9),
        ([PauseInterval(-5.0, 1.0)], 0.9),
        ([PauseInterval(9.0, 99.0)], 0.9),
        ([PauseInterval(1.0, 3.0), PauseInterval(2.0, 4.0)], 0.7),
        ([PauseInterval(1.0, 4.0), PauseInterval(2.0, 3.0)], 0.7),
        ([PauseInterval(1.0, 2.0, again_s=1.0)], 0.8),
        ([PauseInterval(0.0, 10.0, again_s=5.0)], 0.0),
    ],
)
def test_pauses_inside_the_time_are_lost_once_and_so_are_steps_made_again(
    pauses: list[PauseInterval], share: float
) -> None:
    assert goodput(0.0, 10.0, pauses) == pytest.approx(share)


@given(st.lists(st.builds(PauseInterval, *[st.floats(-1e3, 1e3)] * 3), max_size=8))
def test_it_is_a_share_whatever_the_pauses_are(pauses: list[PauseInterval]) -> None:
    share = goodput(0.0, 100.0, pauses)
    assert share is not None
    assert 0.0 <= share <= 1.0
