"""The newest bytes of a start, whatever the pieces in which it said them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.worker_log import KEPT_BYTES, PIECE_BYTES, TailBuffer

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
