"""Equal lines of several workers are shown once, and nothing is lost."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.text.dedup import WAITING_BYTES_MAX, WAITING_LINES_MAX, LineDeduplicator, MergedLine

WINDOW_S = 0.3


def collapse(*ranks: int) -> LineDeduplicator[int]:
    made: LineDeduplicator[int] = LineDeduplicator(WINDOW_S)
    for rank in ranks:
        made.join(rank)
    return made


def shown(lines: list[MergedLine[int]]) -> list[tuple[list[int], bytes]]:
    return [(sorted(line.who), line.text) for line in lines]


def test_a_line_that_all_have_said_is_shown_at_once_with_all_of_them() -> None:
    lines = collapse(0, 1, 2)
    assert lines.add_lines(1, [b"a"], 0.0) == []
    assert lines.add_lines(0, [b"a"], 0.1) == []
    assert shown(lines.add_lines(2, [b"a"], 0.2)) == [([0, 1, 2], b"a")]


def test_a_line_that_some_have_said_waits_for_the_window_and_no_longer() -> None:
    lines = collapse(0, 1, 2)
    assert not lines.add_lines(0, [b"a"], 1.0)
    assert not lines.add_lines(1, [b"a"], 1.2)
    assert lines.due_at == 1.0 + WINDOW_S
    assert not lines.due(1.2)
    assert shown(lines.due(1.0 + WINDOW_S)) == [([0, 1], b"a")]
    assert lines.due_at is None


def test_who_speaks_alone_is_never_delayed() -> None:
    assert shown(collapse(5).add_lines(5, [b"a", b"a", b"b"], 0.0)) == [([5], b"a"), ([5], b"a"), ([5], b"b")]


def test_a_line_that_one_says_twice_is_shown_twice() -> None:
    lines = collapse(0, 1)
    lines.add_lines(0, [b"a", b"a"], 0.0)
    assert shown(lines.add_lines(1, [b"a", b"a"], 0.1)) == [([0, 1], b"a"), ([0, 1], b"a")]


def test_an_equal_line_before_what_one_has_said_since_is_not_joined() -> None:
    lines = collapse(0, 1)
    lines.add_lines(0, [b"a", b"b"], 0.0)
    out = lines.add_lines(1, [b"b", b"a"], 0.1)
    assert shown(out + lines.flush()) == [([0], b"a"), ([0, 1], b"b"), ([1], b"a")]


def test_nobody_waits_for_who_has_left_and_the_last_one_takes_all_along() -> None:
    lines = collapse(0, 1, 2)
    lines.add_lines(0, [b"a"], 0.0)
    lines.add_lines(1, [b"a", b"b"], 0.0)
    assert shown(lines.leave(2)) == [([0, 1], b"a")]
    assert shown(lines.leave(0)) == [([1], b"b")]
    lines.add_lines(1, [b"c"], 0.0)
    assert lines.leave(1) == []
    assert lines.due_at is None


def test_what_waits_has_a_bound() -> None:
    lines = collapse(0, 1)
    many = [b"%d" % number for number in range(WAITING_LINES_MAX + 5)]
    assert [line.text for line in lines.add_lines(0, many, 0.0)] == many[:5]
    long = collapse(0, 1)
    assert len(long.add_lines(0, [b"x" * WAITING_BYTES_MAX, b"y"], 0.0)) == 1


def work(count: int) -> int:
    """Lines of Python that run while two workers say so many equal lines each."""
    lines, run = collapse(0, 1, 2), 0

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        nonlocal run
        run += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for who in (0, 1):
            for _ in range(2):
                lines.add_lines(who, [b"a"] * (count // 2), 0.0)
    finally:
        sys.settrace(before)
    assert len(lines.flush()) == count
    return run


def test_equal_lines_that_wait_make_no_line_dearer() -> None:
    assert work(1000) <= 2.2 * work(500)


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[int, list[bytes], float]]:
    texts = st.sampled_from([b"a", b"b", b"c", b""])
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.lists(texts, max_size=4), st.floats(0, 0.5)), max_size=40))
    now, told = 0.0, []
    for who, lines, pause in steps:
        now += pause
        told.append((who, lines, now))
    return told


@given(stories(), st.sets(st.integers(0, 3)))
def test_each_line_of_each_one_comes_out_once_in_its_order_and_within_the_window(
    told: list[tuple[int, list[bytes], float]], silent: set[int]
) -> None:
    lines = collapse(*silent)
    said: defaultdict[int, list[tuple[bytes, float]]] = defaultdict(list)
    heard: defaultdict[int, list[tuple[bytes, float]]] = defaultdict(list)

    def hear(out: list[MergedLine[int]], now: float) -> None:
        for line in out:
            assert line.who
            for who in line.who:
                heard[who].append((line.text, now))

    for who, texts, now in told:
        while (at := lines.due_at) is not None and at <= now:
            hear(lines.due(at), at)
        said[who] += [(text, now) for text in texts]
        hear(lines.add_lines(who, texts, now), now)
    while (at := lines.due_at) is not None:
        hear(lines.due(at), at)
    assert {who for who in said if said[who]} == set(heard)
    for who, out in heard.items():
        assert [text for text, _ in out] == [text for text, _ in said[who]]
        assert all(
            shown_at - said_at <= WINDOW_S + 1e-9 for (_, shown_at), (_, said_at) in zip(out, said[who], strict=True)
        )
