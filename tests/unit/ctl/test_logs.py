"""`elastic-ctl logs` without a job: how it reads its arguments, what it selects, and how long it asks a node."""

from __future__ import annotations

import argparse

import pytest
from msgspec.structs import replace

from elastic.core.ps.model import Role
from elastic.errors import ConfigError
from launcher.ctl import cli
from launcher.ctl.logs import all_ranks
from launcher.ctl.logs import command as logs
from launcher.ctl.logs.follower import tries_s
from launcher.ctl.logs.output import LINE_MAX, LineOutput
from launcher.ctl.logs.previous import last_lines, previous_start
from tests.support.job_status import SPEC, generation, view


@pytest.mark.parametrize(("lease_ttl_s", "seconds"), [(5.0, 30.0), (15.0, 30.0), (600.0, 1200.0)])
def test_a_node_that_died_is_asked_until_its_lease_has_ended(lease_ttl_s: float, seconds: float) -> None:
    assert tries_s(view(spec=replace(SPEC, lease_ttl_s=lease_ttl_s))) == seconds
    assert tries_s(view(spec=None)) == 30.0


class TestSince:
    @pytest.mark.parametrize(
        ("text", "age_s"),
        [
            ("5m", 300.0),
            ("90", 90.0),
            ("2026-11-23T03:46:05Z", 55.0),
            ("2026-11-23T04:46:05+01:00", 55.0),
        ],
    )
    def test_a_duration_or_a_time_is_an_age(self, text: str, age_s: float) -> None:
        assert logs.since(text, lambda: 1795405620.0) == age_s

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("yesterday", "neither a duration"),
            ("-5m", "neither a duration"),
            ("2026-11-23T03:46:05", "no time zone; append Z"),
            ("2026-11-23T03:48:05Z", "in the future"),
        ],
    )
    def test_another_text_is_refused(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            logs.since(text, lambda: 1795405620.0)


class TestArguments:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("logs", "no worker named"),
            ("logs 0 --all", "leave RANK out, or --all"),
            ("logs 0 --previous --follow", "--previous .* --follow"),
            ("logs 0 --previous --since 5m", "--previous and --since"),
        ],
    )
    def test_arguments_that_contradict_each_other_are_refused(self, words: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            logs._check(asked(words))

    @pytest.mark.parametrize(
        ("words", "lines"),
        [("logs 0", 100), ("logs --all", 10), ("logs 0 --since 5m", 100_000), ("logs --all --since 5m -n 3", 3)],
    )
    def test_the_number_of_lines_has_a_default_that_fits(self, words: str, lines: int) -> None:
        arguments = asked(words)
        assert logs._lines(arguments, logs.LINES_OF_ALL if arguments.all else logs.LINES) == lines


def asked(words: str) -> argparse.Namespace:
    return cli.parser().read(words.split())


class TestAllRanks:
    def test_every_rank_of_the_newest_generation_is_shown(self) -> None:
        ranks = [(Role.WORKER, rank) for rank in range(4)]
        assert all_ranks.processes(view(newest=generation(1, "a", "b"))) == ranks
        assert all_ranks.processes(view()) == []

    def test_only_whole_lines_are_written_and_each_has_its_rank(
        self, capfdbinary: pytest.CaptureFixture[bytes]
    ) -> None:
        output = LineOutput("[rank 1] ", raw=False)
        output.feed(b"one\ntw")
        output.feed(b"o\n\x1b[31mred")
        output.note("==== note ====")
        output.feed(b"10%\r50%\r100%\r\nlast")
        output.close()
        assert capfdbinary.readouterr().out.splitlines() == [
            b"[rank 1] one",
            b"[rank 1] two",
            b"[rank 1] \x1b[31mred\x1b[0m",
            b"[rank 1] ==== note ====",
            b"[rank 1] 100%",
            b"[rank 1] last",
        ]

    def test_a_line_without_an_end_is_written_in_parts(self, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        output = LineOutput("", raw=True)
        output.feed(b"x" * (LINE_MAX + 1))
        output.close()
        assert [len(line) for line in capfdbinary.readouterr().out.splitlines()] == [LINE_MAX, 1]


class TestPrevious:
    def test_it_is_the_start_of_the_generation_before_or_the_one_before_the_newest(self) -> None:
        starts = {(2, 0): b"", (3, 0): b"", (3, 7): b""}
        assert previous_start(starts, 2) == (2, 0)
        assert previous_start(starts, 3) == (3, 7)
        assert previous_start(starts, 1) is None
        assert previous_start(starts, None) == (3, 0)
        assert previous_start({(1, 0): b""}, None) is None

    def test_its_last_lines_are_shown(self) -> None:
        assert last_lines(b"one\ntwo\nthree", 2) == b"two\nthree"
        assert last_lines(b"one\n", 5) == b"one\n"
        assert last_lines(b"one\n", 0) == b""
