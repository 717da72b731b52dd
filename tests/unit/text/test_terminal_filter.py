"""What of a worker's output a terminal gets."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.text.terminal_filter import CSI_MAX, RESET, STRING_MAX, TerminalFilter

ALLOWED = re.compile(r"\x1b\[(?:[0-9;:]*m|[0-2]?K)|[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\udc80-\udc9f]")
CONTROLS = (
    rb"\x1b [ ] P 31 ; m K J ( c \x1b\\ \x07 \n \r \t \x9b \x9d \xc2\x9b \xc2\x9d \xc2\x9c \x9c \x80 \x7f \x18 \x05"
)
TOKENS = st.sampled_from(
    [
        *(token.decode("unicode_escape").encode("latin-1") for token in CONTROLS.split()),
        *(b" ", b"\xc2", b"\xa0", b"\xe2", b"text", b"\x1b[2J", b"\x1b]0;t", *map(str.encode, "é…🔥⛛")),
    ]
)
STREAMS = st.one_of(st.binary(), st.lists(TOKENS).map(b"".join))


def shown(*pieces: bytes) -> bytes:
    """All that comes out of a stream."""
    filter_ = TerminalFilter()
    return b"".join(map(filter_.feed, pieces)) + filter_.end()


@given(STREAMS)
def test_nothing_comes_out_that_a_terminal_obeys_but_colours_and_the_end_of_a_line(stream: bytes) -> None:
    out = shown(stream).decode("utf-8", "surrogateescape")
    assert "".join(ALLOWED.findall(out)) == out


@given(STREAMS, st.lists(st.integers(0, 40)))
def test_it_does_not_matter_how_a_stream_is_cut_into_pieces(stream: bytes, cuts: list[int]) -> None:
    pieces, rest = [], stream
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    assert shown(*pieces, rest) == shown(stream)
    assert shown(*(bytes([byte]) for byte in stream)) == shown(stream)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\r\t")))
def test_text_without_controls_passes_unchanged(text: str) -> None:
    assert shown(text.encode()) == text.encode()


@given(STREAMS)
def test_what_came_out_passes_unchanged(stream: bytes) -> None:
    assert shown(shown(stream)) == shown(stream)


@pytest.mark.parametrize(
    "kept",
    [
        b"\x1b[31mred\x1b[0m",
        b"\x1b[1;38;2;255;0;0mred\x1b[m",
        b"\x1b[4:3mwavy\x1b[m",
        b"\r 50%|#####     |\x1b[K\r100%|##########|\x1b[0K\n",
        "日本語 ünïcödé 🔥 \u0100\u0400\u2018\u201d\n".encode(),
        b"latin-1: caf\xe9\n",
    ],
)
def test_colours_progress_bars_and_text_are_kept(kept: bytes) -> None:
    assert shown(kept) == kept


@pytest.mark.parametrize(
    "sequence",
    [
        *(b"\x1b]0;title\x07", b"\x1b]0;title\x1b\\", b"\x9d0;title\x9c", b"\xc2\x9d0;title\xc2\x9c"),
        *(b"\x1b]52;c;cm0gLXJmIH4=\x07", b"\x1b]8;;http://evil\x1b\\", b"\x1b]8;;\x1b\\"),
        *(b"\x1b[2J", b"\x1b[H", b"\x1b[3A", b"\x1b[?1049h", b"\x1b[6n", b"\x1b[>4;1m", b"\x1b[ q", b"\x1b[!p"),
        *(b"\xc2\x9b2J", b"\x9b2J", b"\x9b?25l", b"\x1b[31;1$m", b"\x1b[3K", b"\x1b[0;0K"),
        *(
            b"\x1bP1$r\x1b\\",
            b"\x1bXsos\x1b\\",
            b"\x1b^pm\x1b\\",
            b"\x1b_apc\x1b\\",
            b"\x1bP+q544e\xc2\x9c",
            b"\x90q\x18",
        ),
        *(b"\x1bc", b"\x1b7", b"\x1b8", b"\x1b(0", b"\x1b#8", b"\x1b%@", b"\x1bM", b"\x1b=", b"\x1b /F", b"\x1bN"),
        *(
            b"\x07",
            b"\x08",
            b"\x05",
            b"\x0e",
            b"\x0f",
            b"\x00",
            b"\x7f",
            b"\x0b",
            b"\x0c",
            b"\xc2\x85",
            b"\x85",
            b"\x84",
        ),
        b"\x1b[" + b"1" * (CSI_MAX + 1) + b"m",
    ],
)
def test_other_sequences_and_controls_are_left_out_whole(sequence: bytes) -> None:
    assert shown(b"before" + sequence + b"after\n") == b"beforeafter\n"


def test_a_sequence_that_is_broken_off_costs_no_text() -> None:
    assert shown(b"\x1b[31\nnext\x1b\n\x1b(\nlast\x1b") == b"\nnext\n\nlast"


def test_a_string_that_is_never_ended_hides_its_line_or_what_has_room_and_no_more() -> None:
    assert shown(b"\x1b]0;title\nnext\n") == b"\nnext\n"
    assert shown(b"\x1b]" + b"x" * STRING_MAX + b"text") == b"text"
    assert shown(b"\x1b]" + b"x" * (STRING_MAX - 1), b"\x07text") == b"text"


def test_colours_that_are_on_at_the_end_are_ended() -> None:
    assert shown(b"\x1b[8mhidden") == b"\x1b[8mhidden" + RESET
    assert shown(b"\x1b[8mhidden\x1b[0m") == b"\x1b[8mhidden\x1b[0m"
