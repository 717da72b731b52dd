"""The command line of `elastic-ctl` as values: where flags may be written, mistakes, and the help texts."""

from __future__ import annotations

import shlex

import pytest

from elastic.errors import ConfigError
from launcher.ctl import cli
from launcher.ctl.command_line import HINTS, CtlParser
from launcher.job.named_job import Subcommand


@pytest.fixture(scope="module")
def parser() -> CtlParser:
    return cli.parser()


class TestFlagsOnEitherSide:
    @pytest.mark.parametrize(
        "words",
        [
            ["status", "--job-id", "j", "--elastic-server", "h:1"],
            ["--job-id", "j", "status", "--elastic-server", "h:1"],
            ["--job-id=j", "--elastic-server", "h:1", "status"],
            ["--job_id", "j", "--elastic_server=h:1", "status"],
        ],
    )
    def test_connection_flags_may_come_before_or_after_the_subcommand(
        self, parser: CtlParser, words: list[str]
    ) -> None:
        asked = parser.read(words)
        assert (asked.command.name, asked.job_id, asked.elastic_server) == ("status", "j", "h:1")

    def test_flags_of_the_subcommand_may_come_first_too(self, parser: CtlParser) -> None:
        asked = parser.read(["--follow", "--lines", "5", "logs", "0"])
        assert (asked.command.name, asked.rank, asked.follow, asked.lines) == ("logs", "0", True, 5)

    def test_a_value_that_is_named_like_a_subcommand_is_the_value(self, parser: CtlParser) -> None:
        asked = parser.read(["--job-id", "stop", "status"])
        assert (asked.command.name, asked.job_id) == ("status", "stop")

    def test_what_follows_two_dashes_is_no_flag(self, parser: CtlParser) -> None:
        assert parser.read(["drain", "--", "--odd"]).targets == ["--odd"]


class TestShortFlags:
    @pytest.mark.parametrize(
        ("words", "name", "value"),
        [
            ("status -o json", "output", "json"),
            ("status --json", "output", "json"),
            ("status", "output", "text"),
            ("-o json status", "output", "json"),
            ("-ojson status", "output", "json"),
            ("list --output=json", "output", "json"),
            ("doctor -o json", "output", "json"),
            ("version -o json", "output", "json"),
            ("events -o text", "output", "text"),
            ("events -f", "follow", True),
            ("logs 0 -f", "follow", True),
            ("-f logs 0", "follow", True),
            ("logs 0 -n 7", "lines", 7),
            ("-n7 logs 0", "lines", 7),
            ("logs 0 --tail 7", "lines", 7),
            ("logs 0", "lines", None),
            ("events -n 3", "lines", 3),
            ("events", "lines", None),
            ("status -w", "watch", 2.0),
            ("-w status", "watch", 2.0),
            ("status -w 500ms", "watch", 0.5),
            ("status", "watch", None),
            ("forget -y", "yes", True),
            ("stop -y", "yes", True),
            ("stop", "yes", False),
        ],
    )
    def test_a_short_flag_is_the_long_one(self, parser: CtlParser, words: str, name: str, value: object) -> None:
        assert vars(parser.read(words.split()))[name] == value

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("status -o yaml", "'yaml'"),
            ("logs 0 -n x", "'x' is not a number from 0 to 100000"),
            ("logs 0 -n -1", "'-1' is not a number from 0 to 100000"),
            ("logs 0 -n 100001", "'100001' is not a number from 0 to 100000"),
            ("stacks 0 -f", "-f"),
        ],
    )
    def test_a_wrong_value_is_named(self, parser: CtlParser, words: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            parser.read(words.split())


class TestMistakes:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["stauts"], "no such command: stauts; did you mean status?"),
            (["delete"], "no such command: delete; did you mean forget?"),
            (["--job-id", "j", "evnts"], "no such command: evnts; did you mean events?"),
            (["zzz"], "no such command: zzz; elastic-ctl --help lists all"),
            (["status", "--jsno"], "no such argument: --jsno; did you mean --json?"),
            (["status", "--job=3"], "no such argument: --job; did you mean --job-id?"),
            (["status", "--zzzzz"], "no such argument: --zzzzz; elastic-ctl status --help lists all"),
            (["--zzzzz", "status"], "no such argument: --zzzzz; elastic-ctl --help lists all"),
            (["--now", "status"], "no such argument: --now; elastic-ctl status --help lists all"),
            (["stacks"], "the following arguments are required: RANK; elastic-ctl stacks --help shows the usage"),
            ([], "no command given; elastic-ctl --help lists all"),
            (["--job-id", "j"], "no command given; elastic-ctl --help lists all"),
        ],
    )
    def test_a_mistake_names_what_was_probably_meant(self, parser: CtlParser, words: list[str], message: str) -> None:
        with pytest.raises(ConfigError) as raised:
            parser.read(words)
        assert str(raised.value) == message

    def test_every_hint_is_a_command(self, parser: CtlParser) -> None:
        assert {hint.split()[0] for hint in HINTS.values()} <= set(parser.commands)
        assert not set(HINTS) & set(parser.commands)


class TestHelp:
    def test_the_help_lists_every_command_once_below_its_group(self, parser: CtlParser) -> None:
        lines = parser.format_help().splitlines()
        assert [line for line in lines if line in {f"{group.title}:" for group in cli.GROUPS}] == [
            "Look at a job:",
            "Change a job:",
            "Clean up:",
            "Tools:",
        ]
        for name in parser.commands:
            assert sum(line.startswith(f"  {name} ") for line in lines) == 1, name

    @pytest.mark.parametrize("command", cli.TABLE.commands, ids=lambda command: command.name)
    def test_every_help_has_an_example_that_can_be_read(self, parser: CtlParser, command: Subcommand) -> None:
        assert command.examples
        text = parser.commands[command.name].format_help()
        for purpose, example in command.examples:
            assert f"  # {purpose}\n  {example}\n" in text
            words = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
            assert words[:1] == ["elastic-ctl"]
            assert parser.read(words[1:]).command.name == command.name

    def test_the_examples_of_the_overview_can_be_read(self, parser: CtlParser) -> None:
        for _, example in cli.TABLE.examples[1:]:
            parser.read(shlex.split(example)[1:])

    def test_a_help_shows_the_common_connection_flags_and_where_the_others_are(self, parser: CtlParser) -> None:
        text = parser.commands["status"].format_help()
        assert "--elastic-server" in text
        assert "elastic-ctl options" in text
        assert "--etcd-ca" not in text
        assert "--etcd-ca" in parser.commands["status"].flags

    @pytest.mark.parametrize(
        ("words", "shows"),
        [
            (("help",), "Change a job:"),
            (("help", "logs"), "usage: elastic-ctl logs "),
            (("logs", "--help"), "usage: elastic-ctl logs "),
            (("--job-id", "j", "--help"), "Change a job:"),
            (("options",), "--etcd-password-file"),
        ],
    )
    def test_help_goes_to_stdout(self, words: tuple[str, ...], shows: str, capsys: pytest.CaptureFixture[str]) -> None:
        try:
            code = cli.main(words)
        except SystemExit as ended:
            code = ended.code  # type: ignore[assignment]
        assert code == 0
        assert shows in capsys.readouterr().out

    def test_help_of_an_unknown_command_names_the_nearest(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(("help", "lgos")) == 2
        assert capsys.readouterr().err == "elastic-ctl: error: no such command: lgos; did you mean logs?\n"


def test_the_version_has_what_a_bug_report_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTIC_ETCD", raising=False)
    assert cli.main(("version",)) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["elastic-launch", "schema", "Python", "torch", "grpcio", "msgspec", "system"]
