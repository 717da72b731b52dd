"""The order of an epoch's samples, in parts and as a whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic.train.data.permutation import BLOCK, Permutation

LENGTH = 5 * BLOCK
SHUFFLED = [Permutation(LENGTH, 3, None).take(epoch, range(LENGTH)) for epoch in range(2)]

LOOKS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, LENGTH - 1), st.integers(1, 2 * BLOCK)), max_size=8)
"""An epoch, where to begin, and how many to take."""


@given(LOOKS)
def test_any_part_is_that_of_the_whole_order_whatever_was_taken_before(looks: list[tuple[int, int, int]]) -> None:
    order = Permutation(LENGTH, 3, None)
    for epoch, start, count in looks:
        part = range(start, min(start + count, LENGTH))
        assert order.take(epoch, part) == SHUFFLED[epoch][part.start : part.stop]


def test_what_comes_before_the_part_just_taken_is_right_too() -> None:
    order = Permutation(LENGTH, 3, None)
    for start in (3 * BLOCK, 0, BLOCK - 2, 3 * BLOCK - 1):
        assert order.take(0, range(start, start + 4)) == SHUFFLED[0][start : start + 4]


def test_a_shuffled_order_is_of_pythons_own_numbers() -> None:
    assert {type(index) for index in Permutation(10, 3, None).take(0, range(10))} == {int}


def test_an_order_of_ones_own_is_asked_for_once_in_each_epoch() -> None:
    asked: list[int] = []

    def own(epoch: int) -> list[int]:
        asked.append(epoch)
        return list(range(LENGTH))

    order = Permutation(LENGTH, None, own)
    for epoch in range(2):
        order.mark(epoch)
        for start in range(0, LENGTH, BLOCK):
            order.take(epoch, range(start, start + 2))
        assert order.length(epoch) == LENGTH
    assert asked == [0, 1]


def test_the_mark_is_that_of_the_epoch_and_of_the_order_and_the_same_in_every_version() -> None:
    order = Permutation(LENGTH, 3, None)
    marks = [order.mark(epoch) for epoch in (0, 1, 0)]
    assert marks == [Permutation(LENGTH, 3, None).mark(epoch) for epoch in (0, 1, 0)]
    assert len({*marks, Permutation(LENGTH, 4, None).mark(0)}) == 3
    assert Permutation(1000, None, None).mark(0) == 1682157928
