"""The newest starts of a process, read from any place on."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from launcher.logs.recent_starts import LogPosition, RecentStarts
from launcher.logs.worker_log import KEPT_BYTES
from tests.support.start_logs import NAME, start


def read(logs: RecentStarts, place: LogPosition | None) -> tuple[bytes, int, LogPosition]:
    """All that there is from a place on, how much was missing, and the place behind it."""
    assert place is not None
    found, missing = b"", 0
    while True:
        data, lost, place = logs.piece(NAME, place)
        if not data:
            return found, missing, place
        found, missing = found + data, missing + lost


def test_a_start_is_its_header_and_what_it_wrote() -> None:
    logs = RecentStarts()
    start(logs).write(b"one\ntwo\n")
    assert read(logs, logs.begins(NAME, (0, 0), 100)) == (b"==== gen 1 ====\none\ntwo\n", 0, LogPosition((1, 0), 24))
    assert logs.path(NAME) == "/log/workerlog.3"


def test_the_last_lines_are_counted_from_the_end_over_two_starts_and_an_unfinished_one_counts() -> None:
    logs = RecentStarts()
    first = start(logs)
    first.write(b"one\ntwo\n")
    start(logs, (2, 0)).write(b"three\nfo")
    everything = b"==== gen 1 ====\none\ntwo\n==== gen 2 ====\nthree\nfo"
    for lines, found in enumerate(
        [b"", b"fo", b"three\nfo", b"==== gen 2 ====\nthree\nfo", b"two\n==== gen 2 ====\nthree\nfo"]
    ):
        assert read(logs, logs.begins(NAME, (0, 0), lines))[0] == found
    assert read(logs, logs.begins(NAME, (0, 0), 6))[0] == everything
    assert read(logs, logs.begins(NAME, (0, 0), 60))[0] == everything


def test_who_has_had_a_start_gets_those_after_it() -> None:
    logs = RecentStarts()
    start(logs).write(b"one\n")
    assert logs.begins(NAME, (1, 0), 100) is None
    start(logs, (1, 7)).write(b"two\n")
    assert read(logs, logs.begins(NAME, (1, 0), 100))[0] == b"==== gen 1 ====\ntwo\n"


def test_a_log_that_grows_is_read_on_from_the_place_and_into_the_next_start() -> None:
    logs = RecentStarts()
    log = start(logs)
    _, _, place = read(logs, logs.begins(NAME, (0, 0), 100))
    log.write(b"one\n")
    found, _, place = read(logs, place)
    assert found == b"one\n"
    log.line("==== ended ====")
    log.close()
    start(logs, (2, 0)).write(b"two\n")
    assert read(logs, place)[0] == b"==== ended ====\n==== gen 2 ====\ntwo\n"


def test_a_start_is_over_when_its_log_is_closed() -> None:
    logs = RecentStarts()
    assert logs.over(NAME, (0, 0)) is None
    log = start(logs)
    assert logs.over(NAME, (0, 0)) is None
    log.close()
    assert logs.over(NAME, (0, 0)) == (1, 0)
    assert logs.over(NAME, (1, 0)) is None


def test_what_is_not_remembered_any_more_is_counted() -> None:
    logs = RecentStarts()
    log = start(logs)
    _, _, place = read(logs, logs.begins(NAME, (0, 0), 100))
    log.write(b"x" * (3 * KEPT_BYTES))
    found, missing, _ = read(logs, place)
    assert (len(found), missing) == (KEPT_BYTES, 2 * KEPT_BYTES)
    found, missing, _ = read(logs, logs.begins(NAME, (0, 0), 100))
    assert found.startswith(b"==== gen 1 ====\nxxx")
    assert (len(found), missing) == (KEPT_BYTES + 16, 2 * KEPT_BYTES)


def test_two_starts_of_a_node_are_remembered_whatever_ranks_it_had() -> None:
    logs = RecentStarts()
    for g in range(1, 5):
        start(logs, (g, 0))
    assert read(logs, logs.begins(NAME, (0, 0), 100))[0] == b"==== gen 3 ====\n==== gen 4 ====\n"
    start(logs, (5, 0), "workerlog.1")
    assert read(logs, logs.begins(NAME, (0, 0), 100))[0] == b"==== gen 4 ====\n"
    assert not logs.has(NAME, (3, 0))
    assert logs.has(NAME, (4, 0))
    start(logs, (6, 0), "workerlog.1")
    assert logs.begins(NAME, (0, 0), 100) is None
    assert logs.path(NAME) == ""


@given(st.lists(st.lists(st.binary(max_size=40), max_size=6), min_size=1, max_size=2), st.integers(0, 30))
def test_the_last_lines_are_those_of_all_that_was_written(starts: list[list[bytes]], lines: int) -> None:
    logs, written = RecentStarts(), []
    for g, pieces in enumerate(starts, 1):
        log = start(logs, (g, 0))
        text = b"==== gen %d ====\n" % g + b"".join(pieces)
        written += [line for line in re.findall(rb"[^\n]*\n|[^\n]+", text) if line]
        for piece in pieces:
            log.write(piece)
    found, missing, place = read(logs, logs.begins(NAME, (0, 0), lines))
    assert (found, missing) == (b"".join(written[-lines:] if lines else ()), 0)
    assert logs.piece(NAME, place)[0] == b""


def test_lines_that_are_older_than_an_age_are_left_out_with_the_starts_before_them() -> None:
    logs, clock = RecentStarts(), Clock()
    first = start(logs, clock=clock)
    first.write(b"one\n")
    clock.now += 10.0
    second = start(logs, (2, 0), clock=clock)
    second.write(b"two\nthr")
    clock.now += 10.0
    second.write(b"ee\nfour\n")

    def since(age_s: float, lines: int = 100) -> bytes:
        return read(logs, logs.begins(NAME, (0, 0), lines, age_s))[0]

    assert since(5.0) == b"three\nfour\n", "a line that was begun before is whole"
    assert since(5.0, lines=1) == b"four\n"
    assert since(15.0) == b"==== gen 2 ====\ntwo\nthree\nfour\n"
    assert since(25.0) == b"==== gen 1 ====\none\n==== gen 2 ====\ntwo\nthree\nfour\n"
    clock.now += 10.0
    assert since(5.0) == b""
    second.write(b"five\n")
    assert since(5.0) == b"five\n"


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now
