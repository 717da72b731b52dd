"""Words for people: counts, lists, sizes, times, endpoints."""

from __future__ import annotations

import pytest

from elastic._text import counted, join_host_port, joined, rounded_up, shortened, size_text, time_text


def test_a_count_has_its_noun() -> None:
    assert [counted(count, "node") for count in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert [counted(count, "way is", "ways are") for count in (1, 2)] == ["1 way is", "2 ways are"]


def test_names_are_joined_as_a_sentence_has_them() -> None:
    assert [joined("abc"[:count]) for count in range(4)] == ["", "a", "a and b", "a, b and c"]


def test_a_long_list_is_cut_and_its_rest_is_counted() -> None:
    assert [shortened("abcd"[:count], 2) for count in range(4)] == ["", "a", "a, b", "a, b and 1 more"]
    assert shortened(["a", "b", "c", "d"], 2, "; ") == "a; b; and 2 more"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (12.34e9, "12.3 GB"), (4e12, "4.0 TB")],
)
def test_a_size_is_in_the_largest_unit_that_it_fills(size_bytes: float, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (9000, "2.5 h"), (864_000, "10 d")],
)
def test_a_time_is_in_one_unit(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_a_time_that_is_left_is_rounded_up_but_for_the_error_of_a_sum() -> None:
    assert [rounded_up(seconds) for seconds in (0.0, 0.1, 1.0, 1.1)] == [0, 1, 1, 2]
    assert [rounded_up(seconds, 60) for seconds in (1.0, 60.0, 60.1, 3600.0)] == [1, 1, 2, 60]
    at = 13_436.4
    left = at + 3600 - at
    assert left > 3600
    assert (rounded_up(left), rounded_up(left, 60)) == (3600, 60)


def test_a_measured_time_has_digits_and_is_in_milliseconds_below_a_second() -> None:
    assert [time_text(seconds, 2) for seconds in (0.0, 0.0304, 1.0, 119.994, 200.0)] == [
        "0 ms",
        "30 ms",
        "1.00 s",
        "119.99 s",
        "3 min",
    ]


def test_an_ipv6_address_gets_brackets_before_its_port() -> None:
    assert [join_host_port(host, 1) for host in ("a", "::1", "[::1]")] == ["a:1", "[::1]:1", "[::1]:1"]
