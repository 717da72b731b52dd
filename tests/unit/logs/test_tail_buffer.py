"""The newest bytes of a start, whatever the pieces in which it said them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.worker_log import KEPT_BYTES, PIECE_BYTES, SPANS_MAX, TailBuffer

SIZES = st.lists(st.sampled_from([1, 7, 1000, PIECE_BYTES // 2 + 1, PIECE_BYTES, 1 << 16]), max_size=60)


@given(SIZES)
def test_the_end_is_whole_and_says_whether_there_was_more(sizes: list[int]) -> None:
    recent, whole = TailBuffer(), b""
    for number, size in enumerate(sizes):
        piece = bytes([number % 256]) * size
        recent.add(piece)
        whole += piece
    ending = recent.ending()
    assert ending.data == whole[-KEPT_BYTES:]
    assert ending.cut is (len(whole) > KEPT_BYTES)
    assert recent.bytes_written == len(whole)


def test_many_short_pieces_take_no_more_memory_than_few_long_ones() -> None:
    recent = TailBuffer()
    for _ in range(2 * KEPT_BYTES):
        recent.add(b"x")
    assert len(recent._pieces) <= KEPT_BYTES // PIECE_BYTES + 2


def test_a_line_of_ours_ends_an_unfinished_one() -> None:
    recent = TailBuffer()
    for text in (b"one\n", b"two"):
        recent.add(text)
        recent.add_line(b"ours")
    assert recent.ending().data == b"one\nours\ntwo\nours\n"


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bytes_are_older_than_an_age_by_the_second_in_which_they_were_written() -> None:
    clock = Clock()
    recent = TailBuffer(clock)
    assert recent.bytes_older_than(1.0) == 0
    recent.add(b"one\n")
    clock.now += 10.0
    recent.add(b"two\n")
    clock.now += 0.5
    recent.add(b"three\n")
    clock.now += 10.0
    assert recent.bytes_older_than(5.0) is None
    assert recent.bytes_older_than(10.0) == 4
    assert recent.bytes_older_than(10.4) == 4
    assert recent.bytes_older_than(20.6) == 0


def test_times_take_little_memory_and_never_leave_out_what_is_new() -> None:
    clock = Clock()
    recent = TailBuffer(clock)
    for _ in range(5 * SPANS_MAX):
        recent.add(b"x")
        clock.now += 2.0
    assert len(recent._spans) <= SPANS_MAX
    for age_s in (1.0, 2.0, 100.0, 1001.0, 9000.0):
        older = recent.bytes_older_than(age_s)
        exact = 5 * SPANS_MAX - int(age_s // 2.0)
        assert (older if older is not None else recent.bytes_written) <= exact
