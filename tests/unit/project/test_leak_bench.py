"""When the bench of leaks says that something grows."""

from __future__ import annotations

import pytest

from tests.bench.leakparts import FILLED_AT, counter, rows, table


def flat(name: str, values: list[float], every: int = 100) -> bool | None:
    (row,) = rows([{name: value} for value in values], every)
    return row.flat


def test_a_count_that_moves_by_one_is_flat_and_one_that_climbs_leaks() -> None:
    assert flat("agent 1 sockets", [20.0, 21.0] * 250) is True
    assert flat("agent 1 sockets", [20.0 + number / 200 for number in range(500)]) is False


def test_what_is_filled_in_the_first_fifth_is_no_leak() -> None:
    assert flat("log files", [min(13.0 + number, 60.0) for number in range(500)]) is True


def test_a_short_run_does_not_judge_what_is_still_filling_and_nothing_is_expected_of_some() -> None:
    assert flat("etcd keys", [float(number) for number in range(FILLED_AT - 1)]) is None
    assert flat("agent 1 CPU, s", [float(number) for number in range(500)]) is None


@pytest.mark.parametrize(("name", "slack"), [("agent 1 RSS, MB", 3.0), ("etcd in use, MB", 0.5), ("processes", 1.0)])
def test_each_quantity_has_its_slack(name: str, slack: float) -> None:
    (row,) = rows([{name: 1.0}] * 10, 5)
    assert row.bound.slack == slack


def test_the_table_shows_the_first_and_every_so_manyth_change_and_the_verdict() -> None:
    lines = table(rows([{"processes": 9.0}] * 10, 5), 5)
    assert lines[0].split() == ["after", "change", "first", "5", "10", "grew"]
    assert lines[1].split() == ["processes", "9", "9", "9", "0", "flat"]


def test_counters_of_etcd_are_read_with_and_without_labels() -> None:
    text = '# HELP a b\nwatchers 9\nsize{path="x y"} 1.5e+06\n'
    assert [counter(text, name) for name in ("watchers", "size", "none")] == [9.0, 1.5e6, 0.0]
