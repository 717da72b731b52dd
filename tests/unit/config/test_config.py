"""The command line and the environment, as values."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.core.model import NP_UNLIMITED, Np
from launcher.config import argv as command_line
from launcher.config import durations, flags, help_page, readers
from launcher.config.config import Config
from launcher.config.parse import parse
from launcher.config.setting import HELP_GROUPS
from launcher.config.torchrun_names import ALIASES, NO_EFFECT
from tests.support.config_refusal import refusal

SERVER = ("--elastic-server", "10.0.0.5:2379", "--job-id", "j1")


# The script and what belongs to it


def test_everything_after_the_script_is_the_scripts() -> None:
    config = parse([*SERVER, "train.py", "--np", "7", "--lr=0.1", "--", "-h"], {})
    assert (config.script, config.script_args) == ("train.py", ("--np", "7", "--lr=0.1", "--", "-h"))
    assert config.np == Np(low=1, high=1, first=1)


def test_a_double_dash_ends_our_flags() -> None:
    config = parse(["--", "--odd.py", "--", "x"], {})
    assert (config.script, config.script_args) == ("--odd.py", ("--", "x"))


def test_a_module_is_run_with_its_arguments() -> None:
    config = parse(["--np", "2", "-m", "elastic.examples.digits", "--epochs", "3"], {})
    assert (config.module, config.script, config.script_args) == (True, "elastic.examples.digits", ("--epochs", "3"))


def test_no_script_is_an_error_that_shows_the_usage() -> None:
    assert "train.py" in refusal(*SERVER)
    assert "module" in refusal("-m")


# Spelling


@pytest.mark.parametrize(
    "argv",
    [
        ("--nproc-per-node", "4"),
        ("--nproc-per-node=4",),
        ("--nproc_per_node", "4"),
        ("--nproc_per_node=4",),
    ],
)
def test_underscores_and_dashes_spell_the_same_flag(argv: tuple[str, ...]) -> None:
    assert parse([*argv, "t.py"], {}).slots == 4


@pytest.mark.parametrize("flag", ["--elastic", "--nproc", "--n", "--verb", "--log"])
def test_a_flag_cannot_be_abbreviated(flag: str) -> None:
    assert f"no such argument: {flag}" in refusal(flag, "2", "t.py")


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        ("--nnode", "--nnodes"),
        ("--monitor_interval=1", "leave it out"),
        ("--shutdown-timeout", "--stop-timeout"),
        ("--cluster_node_ips=10.0.0.1", "--ips"),
        ("--selected_gpus", "--gpus"),
        ("--node_ip", "--host"),
        ("--use_paddlecloud", "leave it out"),
        ("--started_port", "--port-range"),
        ("--log_level", "--verbose"),
        ("--print_config", "use --explain"),
        ("--devices", "--gpus"),
        ("--master", "--elastic-server"),
        ("--rank", "leave it out"),
        ("--trainers", "--workers"),
        ("--trainer-num", "--worker-num"),
        ("--start_port", "--port-range"),
        ("--max_restart", "--max-restarts"),
        ("-t", "--console"),
        ("-np", "--np"),
        ("--elastic_servre", "--elastic-server"),
    ],
)
def test_a_flag_of_another_launcher_or_a_mistyped_one_is_answered_with_ours(flag: str, hint: str) -> None:
    text = refusal(flag, "2", "t.py")
    assert text.startswith(f"no such argument: {flag.partition('=')[0]}; ")
    assert hint in text


def test_every_flag_of_torchrun_is_ours_or_is_answered_with_ours() -> None:
    from torch.distributed.run import get_args_parser

    for word in (word for action in get_args_parser()._actions for word in action.option_strings):
        name = word.lstrip("-").replace("-", "_")
        if name not in {*flags.BY_NAME, *ALIASES, *NO_EFFECT} and word not in ("-h", "--help", *command_line.MODULE):
            assert command_line.HINTS[name] in refusal(word, "2", "t.py"), word


def test_verbose_and_quiet_have_short_forms() -> None:
    assert (parse(["-v", "t.py"], {}).verbose, parse(["-q", "t.py"], {}).quiet) == (True, True)
    assert parse(["t.py", "-v"], {}).script_args == ("-v",)
    assert refusal("-v", "-q", "t.py") == "--verbose and --quiet contradict each other; leave one out"
    assert refusal("--log-dir", "-q", "t.py") == "--log-dir needs a value (DIR)"
    assert "-q, --quiet " in help_page.help_text()


def test_a_switch_takes_no_value_and_a_flag_needs_one() -> None:
    assert "--force" in refusal("--force=yes", "t.py")
    assert "--np" in refusal("--np")


def test_no_hint_names_a_flag_that_does_not_exist() -> None:
    for name, hint in command_line.HINTS.items():
        assert name not in flags.BY_NAME
        assert hint.startswith(("use ", "leave it out")), name
        for word in hint.replace(",", " ").replace(":", " ").replace(";", " ").split():
            if word.startswith("--"):
                assert word[2:].replace("-", "_") in {*flags.BY_NAME, "explain"}, (name, word)


# Numbers of nodes


@pytest.mark.parametrize(
    ("text", "np"),
    [
        ("2", Np(low=1, high=2, first=2)),
        ("1", Np(low=1, high=1, first=1)),
        ("1:4", Np(low=1, high=4, first=1)),
        ("3:8", Np(low=3, high=8, first=3)),
        ("2:2", Np(low=2, high=2, first=2)),
        ("3+", Np(low=1, high=NP_UNLIMITED, first=3)),
    ],
)
def test_np_is_a_number_or_a_range(text: str, np: Np) -> None:
    config = parse(["--np", text, "t.py"], {})
    assert config.np == np
    assert config.np_given
    assert str(config.np) == text


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "3:2",
        "a",
        "",
        "-1",
        "1:",
        ":2",
        "1:2:3",
        "0:3",
        "1.5",
        "1e3",
        "+",
        "2++",
        "1:2+",
        "1:100000",
        "٢",
        "9" * 30,
    ],
)
def test_anything_else_is_no_np(text: str) -> None:
    assert refusal("--np", text, "t.py").startswith("--np: ")


def test_where_the_job_has_its_own_etcd_and_no_np_every_node_that_joins_is_taken_in() -> None:
    assert parse(["t.py"], {}).np == Np(low=1, high=NP_UNLIMITED, first=1)
    assert parse(["--local-nodes", "3", "t.py"], {}).np == Np(low=1, high=NP_UNLIMITED, first=3)
    assert parse(["--serve", "10.0.0.5", "t.py"], {}).np == Np(low=1, high=NP_UNLIMITED, first=1)
    assert parse([*SERVER, "t.py"], {}).np == Np(low=1, high=1, first=1)
    assert parse(["--ips", "a,b", "t.py"], {}).np == Np(low=1, high=2, first=2)
    assert "any number of nodes, and --ips names 2" in refusal("--ips", "a,b", "--np", "2+", "t.py")


def test_np_is_the_number_of_local_nodes_unless_it_is_given() -> None:
    assert parse([*SERVER, "--local-nodes", "3", "t.py"], {}).np == Np(low=1, high=3, first=3)
    assert parse(["--local-nodes", "3", "--np", "1:3", "t.py"], {}).np == Np(low=1, high=3, first=1)
    assert not parse(["--local-nodes", "3", "t.py"], {}).np_given


def test_without_a_server_one_node_runs_here() -> None:
    assert parse(["t.py"], {}).local_nodes == 1
    assert parse([*SERVER, "t.py"], {}).local_nodes == 0


# The store and the job


@pytest.mark.parametrize(
    ("text", "servers", "tls"),
    [
        ("h:1", ("h:1",), False),
        ("a:1, b:2,a:1", ("a:1", "b:2"), False),
        ("http://a:1,b:2", ("a:1", "b:2"), False),
        ("https://a:1/,https://[::1]:2", ("a:1", "[::1]:2"), True),
    ],
)
def test_servers_are_endpoints_with_commas(text: str, servers: tuple[str, ...], tls: bool) -> None:
    config = parse(["--elastic-server", text, "--job-id", "j", "t.py"], {})
    assert (config.servers, config.tls) == (servers, tls)


@pytest.mark.parametrize(
    "text",
    [
        "h",
        "h:",
        ":1",
        "h:0",
        "h:65536",
        "h:a",
        "::1:2379",
        "a:1,,b:2",
        "ftp://a:1",
        "http://a:1/x",
        "https://a:1,b:2",
        "",
    ],
)
def test_a_server_that_is_no_endpoint_is_refused(text: str) -> None:
    assert refusal("--elastic-server", text, "--job-id", "j", "t.py").startswith("--elastic-server: ")


def test_a_server_without_a_port_is_told_how_to_write_it() -> None:
    assert "10.0.0.5:2379" in refusal("--elastic-server", "10.0.0.5", "--job-id", "j", "t.py")
    assert "[fd00::1]:2379" in refusal("--elastic-server", "fd00::1", "--job-id", "j", "t.py")


def test_a_password_in_a_server_is_refused_and_not_repeated() -> None:
    text = refusal("--elastic-server", "http://root:s3cret@h:1", "--job-id", "j", "t.py")
    assert "password" in text
    assert "s3cret" not in text


def test_a_server_needs_a_job_id() -> None:
    assert "--job-id" in refusal("--elastic-server", "h:1", "t.py")


@pytest.mark.parametrize("text", ["", "a/b", "a b", "ü", "x" * 129, "..", ".", "a\n", "j1/"])
def test_a_bad_job_id_is_refused(text: str) -> None:
    assert refusal("--elastic-server", "h:1", "--job-id", text, "t.py").startswith("--job-id: ")


def test_a_key_prefix_begins_with_a_slash_and_ends_without() -> None:
    assert parse(["--key-prefix", "/team/a/", "t.py"], {}).key_prefix == "/team/a"
    for text in ("elastic", "/", "", "/a//b", "/a b"):
        assert refusal("--key-prefix", text, "t.py").startswith("--key-prefix: ")


# Other values and their relations


@pytest.mark.parametrize(
    "argv",
    [
        ("--lease-ttl", "1"),
        ("--lease-ttl", "2.5"),
        ("--lease-ttl", "nan"),
        ("--silence-timeout", "0.05"),
        ("--silence-timeout", "-1"),
        ("--silence-timeout", "nan"),
        ("--silence-timeout", "never"),
        ("--stop-timeout", "-1"),
        ("--stop-timeout", "soon"),
        ("--join-window", "16"),
        ("--connect-timeout", "inf"),
        ("--join-timeout", "0"),
        ("--max-restarts", "-1"),
        ("--max-restarts", "1.5"),
        ("--nproc-per-node", "0"),
        ("--nproc-per-node", "many"),
        ("--local-nodes", "0"),
        ("--fatal-exit-codes", "0"),
        ("--fatal-exit-codes", "3,,4"),
        ("--fatal-exit-codes", "256"),
        ("--console", "rank1"),
        ("--host", "http://h"),
        ("--host", "h:22"),
        ("--host", ""),
        ("--log-dir", ""),
    ],
)
def test_a_value_that_does_not_fit_its_flag_is_refused_by_name(argv: tuple[str, str]) -> None:
    assert refusal(*argv, "t.py").startswith(f"{argv[0]}: ")


def test_a_limit_of_seconds_is_written_as_a_person_writes_it() -> None:
    assert refusal("--stop-timeout", "-1", "t.py") == "--stop-timeout: -1 is not between 0s and 30d"
    too_short = "; below 2 s one lost packet would look like a node failure"
    assert refusal("--lease-ttl", "-1", "t.py") == f"--lease-ttl: -1 is not between 2s and 10m{too_short}"
    assert refusal("--lease-ttl", "700", "t.py") == "--lease-ttl: 700 is not between 2s and 10m"
    assert "1234567.25s or less" in refusal("--failure-stop-timeout", "2000000", "--stop-timeout", "1234567.25", "t.py")


def advice(error: ValueError) -> list[str]:
    """What a message tells the user to type instead."""
    told = re.search(r"\b(?:use|write) (\S+(?: or \S+)?)", str(error))
    words = told[1].split(" or ") if told else []
    return [word.rstrip(",;") for word in words if word.rstrip(",;") not in ("more", "less")]


READERS = {
    "np": (readers.np, ["0", "0+", "0:0", "0:3", "3:1", "5:0", "0:200000", "200000:0", "200000:5"]),
    "lease_ttl": (
        durations.lease_ttl,
        ["0", "0.5", "1", "1.5", "2.5", "599.5", "600.5", "-1", "-0.5", "1e9", "inf", "nan"],
    ),
    "silence_timeout": (durations.silence_timeout, ["0.05", "99ms", "1e-9", "-1", "601", "inf", "nan"]),
    "port_range": (readers.port_range, ["9", "9:8", "70000:9", "9:70000", "0:0"]),
    "memory_limit": (
        readers.size,
        ["8", "0.5", "8.25", "0", "lots", "1048576", "1048577", "8589934592", "1125899906842624", "9999999999999999"],
    ),
    "log_max_bytes": (readers.log_size, ["5", "1000000", "lots"]),
    "serve": (readers.serve, ["a b:1", "fd00::5:x", "10.0.0.5:x", "10.0.0.5:0"]),
    "elastic_server": (readers.servers, ["a b", "etcd", "fd00::5", "[fd00::5]", "[]", "https://", "", "a:1,,b:2"]),
    "servers": (readers.endpoint_list, ["a b", "ps", "fd00::5", "[fd00::5]", "[]", ""]),
    "metrics_port": (readers.metrics_port, ["::1", "[::1]", "0.0.0.0:x"]),
}
"""By flag: its reader, and texts that it refuses, with values to use instead or without."""


@pytest.mark.parametrize("flag", READERS)
def test_a_value_that_a_message_tells_the_user_to_type_is_accepted(flag: str) -> None:
    read, refused = READERS[flag]
    for text in refused:
        with pytest.raises(ValueError, match=r"\w") as caught:
            read(text)
        for word in advice(caught.value):
            read(word)


@given(st.floats(-10, 1000) | st.integers(-10, 1000))
def test_a_lease_in_fractions_of_a_second_is_refused_with_the_next_whole_number_if_that_is_allowed(
    ttl_s: float,
) -> None:
    try:
        assert durations.lease_ttl(str(ttl_s)) == ttl_s
    except ValueError as error:
        told = [durations.lease_ttl(word) for word in advice(error)]
        assert told == ([math.ceil(ttl_s)] if 2 <= ttl_s <= 600 else [])


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("0.1", 0.1), ("100ms", 0.1), ("1.5", 1.5), ("4s", 4.0)])
def test_a_silence_timeout_is_off_or_long_enough_for_a_few_heartbeats(text: str, seconds: float) -> None:
    assert parse(["--silence-timeout", text, "t.py"], {}).silence_timeout_s == seconds
    assert parse(["t.py"], {"ELASTIC_SILENCE_TIMEOUT": text}).silence_timeout_s == seconds


def test_a_silence_timeout_that_is_too_short_is_refused_with_the_shortest_one() -> None:
    assert refusal("--silence-timeout", "50ms", "t.py") == (
        "--silence-timeout: 50ms is too short: one retransmitted packet would look like a node failure; use 0.1s or "
        "more, or 0 to turn heartbeats off"
    )


@pytest.mark.parametrize(("timeout", "ttl"), [("5", "5"), ("2", "2"), ("3", "2")])
def test_a_silence_timeout_that_is_not_shorter_than_the_lease_is_refused_with_both_values(
    timeout: str, ttl: str
) -> None:
    assert refusal("--silence-timeout", timeout, "--lease-ttl", ttl, "t.py") == (
        f"--silence-timeout {timeout}s is not shorter than --lease-ttl {ttl}s: the lease of a silent node ends first, "
        f"so the timeout has no effect; use less than {ttl}s, or 0 to rely on leases alone"
    )
    assert "--lease-ttl 5s" in refusal("--silence-timeout", "6", "t.py")


@pytest.mark.parametrize("timeout", [(), ("--silence-timeout", "0"), ("--silence-timeout", "1.9")])
def test_the_default_silence_timeout_goes_with_the_shortest_lease(timeout: tuple[str, ...]) -> None:
    assert parse(["--lease-ttl", f"{durations.LEASE_TTL_MIN_S}", *timeout, "t.py"], {}).lease_ttl_s == 2.0


def test_fatal_exit_codes_are_a_list() -> None:
    assert parse(["--fatal-exit-codes", "4, 3,3", "t.py"], {}).fatal_exit_codes == (3, 4)


def test_a_loss_gets_no_more_time_than_a_planned_stop() -> None:
    assert "--failure-stop-timeout 20" in refusal("--failure-stop-timeout", "20", "t.py")
    assert parse(["--failure-stop-timeout", "20", "--stop-timeout", "20", "t.py"], {}).failure_stop_timeout_s == 20.0


def test_a_short_grace_shortens_the_default_grace_of_a_loss() -> None:
    assert parse(["--stop-timeout", "1", "t.py"], {}).failure_stop_timeout_s == 1.0


def test_verbose_and_quiet_exclude_each_other() -> None:
    assert "--quiet" in refusal("--verbose", "--quiet", "t.py")


# Precedence


def test_a_flag_goes_before_our_variable_and_ours_before_paddles() -> None:
    environ = {"ELASTIC_NP": "2", "PADDLE_ELASTIC_NP": "3"}
    assert parse(["--np", "4", "t.py"], environ).np.high == 4
    assert parse(["t.py"], environ).np.high == 2
    assert parse(["t.py"], {"PADDLE_ELASTIC_NP": "3"}).np.high == 3
    assert parse(["t.py"], {}).np.first == 1


@pytest.mark.parametrize(
    "environ",
    [
        {"ELASTIC_ETCD": "h:1", "ELASTIC_JOB_ID": "j"},
        {"ELASTIC_ELASTIC_SERVER": "h:1", "ELASTIC_JOB_ID": "j"},
        {"PADDLE_ELASTIC_SERVER": "h:1", "PADDLE_ELASTIC_JOB_ID": "j"},
        {
            "PADDLE_ELASTIC_ETCD_SERVICE_HOST": "h",
            "PADDLE_ELASTIC_ETCD_SERVICE_PORT": "1",
            "PADDLE_ELASTIC_JOB_ID": "j",
        },
    ],
)
def test_a_server_and_a_job_can_come_from_the_environment(environ: dict[str, str]) -> None:
    config = parse(["t.py"], environ)
    assert (config.servers, config.job_id) == (("h:1",), "j")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert parse(["t.py"], {"ELASTIC_NP": "", "PADDLE_ELASTIC_NP": "2"}).np.high == 2


def test_a_wrong_variable_is_named() -> None:
    assert refusal("t.py", environ={"PADDLE_ELASTIC_NP": "x"}).startswith("PADDLE_ELASTIC_NP: ")


def test_a_switch_can_come_from_the_environment() -> None:
    assert parse(["t.py"], {"ELASTIC_VERBOSE": "1"}).verbose
    assert not parse(["t.py"], {"ELASTIC_VERBOSE": "0"}).verbose
    assert refusal("t.py", environ={"ELASTIC_VERBOSE": "maybe"}).startswith("ELASTIC_VERBOSE: ")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"FLAGS_START_PORT": "6070"}, (6070, 65535)),
        ({"FLAGS_START_PORT": " 6070 ", "PADDLE_PORT": "7000", "TRAINER_PORTS_NUM": "2"}, (6070, 65535)),
        ({"PADDLE_PORT": "7000", "TRAINER_PORTS_NUM": "2"}, (7000, 65535)),
        ({"PADDLE_PORT": "7000"}, None),
        ({"PADDLE_PORT": "6174,6175"}, None),
        ({"ELASTIC_PORT_RANGE": "35000:35099", "FLAGS_START_PORT": "6070"}, (35000, 35099)),
        ({"ELASTIC_FENCE": "x/1", "FLAGS_START_PORT": "6070"}, None),
        ({"ELASTIC_FENCE": "x/1", "PADDLE_PORT": "7000", "TRAINER_PORTS_NUM": "2"}, None),
    ],
)
def test_ports_begin_where_paddles_variables_say_unless_a_worker_or_a_range_says_otherwise(
    environ: dict[str, str], expected: tuple[int, int] | None
) -> None:
    assert parse(["t.py"], environ).port_range == expected
    assert parse(["--port-range", "40000:40009", "t.py"], environ).port_range == (40000, 40009)


def test_a_wrong_start_port_is_named() -> None:
    assert refusal("t.py", environ={"FLAGS_START_PORT": "x"}) == "FLAGS_START_PORT: 'x' is not a whole number"
    assert refusal("t.py", environ={"PADDLE_PORT": "0", "TRAINER_PORTS_NUM": "1"}).startswith("PADDLE_PORT: ")


def test_a_control_port_and_several_nodes_on_one_machine_exclude_each_other() -> None:
    assert "leave out --ctrl-port" in refusal("--ctrl-port", "9988", "--local-nodes", "2", "t.py")
    assert parse(["--ctrl-port", "9988", "t.py"], {}).ctrl_port == 9988


def test_the_host_of_a_pod_is_its_ip() -> None:
    assert parse(["t.py"], {"POD_IP": "10.1.2.3"}).host == "10.1.2.3"
    assert parse(["--host", "[fd00::1]", "t.py"], {"POD_IP": "10.1.2.3"}).host == "fd00::1"


def test_a_launcher_that_a_worker_starts_does_not_read_what_was_set_for_the_worker() -> None:
    environ = {"ELASTIC_FENCE": "x/1", "ELASTIC_JOB_ID": "outer", "ELASTIC_CHECKPOINT_DIR": "/outer"}
    config = parse(["t.py"], environ)
    assert (config.job_id, config.checkpoint_dir) == ("", "")


# The table


def test_every_flag_fills_a_field_and_shows_its_default_and_variable() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}
    text = " ".join(help_page.help_text().split())
    for flag in flags.FLAGS:
        assert flag.field in fields
        assert flag.option in text
        assert flag.variables[0] in text
    assert text.count("(default: ") == len(flags.FLAGS)
    assert text.isascii()


def test_the_groups_of_the_help_are_those_of_the_seed_and_two_more() -> None:
    text = help_page.help_text()
    found = [line[:-1] for line in text.splitlines() if re.fullmatch(r"[A-Z][A-Za-z-]*:", line)]
    assert found == ["Base", "Collective", "Parameter-Server", "Elastic", "Workers", "Logs", "Examples"]
    where = {flag.name: flag.group for flag in flags.FLAGS}
    for group, names in {
        "Base": "log_dir run_mode gpus",
        "Collective": "ips",
        "Parameter-Server": "servers workers heter_workers worker_num server_num heter_worker_num http_port",
        "Elastic": "elastic_server job_id np host",
    }.items():
        assert {where[name] for name in names.split()} == {group}


def test_the_examples_of_the_help_can_be_read() -> None:
    _, _, end = help_page.help_text().partition("\nExamples:\n")
    examples = re.findall(r"^  elastic-launch (.*)$", end, re.MULTILINE)
    assert len(examples) == 5
    for example in examples:
        assert parse(shlex.split(example), {}).script == "train.py"
    assert end.count("\n") == 2 * len(examples), "each has one line that says what it is, and nothing comes after them"


def test_no_line_of_the_help_ends_inside_the_name_of_a_flag() -> None:
    assert not re.search(r"--[\w-]*-$", help_page.help_text(), re.MULTILINE)


def test_the_flags_of_each_group_are_in_the_order_of_the_table() -> None:
    assert {group: " ".join(flag.name for flag in flags.FLAGS if flag.group == group) for group in HELP_GROUPS} == (
        flags.HELP_ORDER
    )


def test_a_call_without_arguments_shows_the_common_flags_and_the_examples() -> None:
    text = help_page.short_text()
    assert text.startswith(f"usage: {help_page.SYNOPSIS}\n")
    assert len(help_page.COMMON) == 12
    for name in help_page.COMMON:
        assert f"\n  {flags.BY_NAME[name].option} {flags.BY_NAME[name].metavar} " in text
    for _, command in help_page.EXAMPLES:
        assert f"\n  {command}\n" in text
    assert text.endswith("\nelastic-launch --help shows all flags.\n")
    assert max(map(len, text.splitlines())) <= help_page.HELP_WIDTH
    assert text.isascii()


def test_the_defaults_of_the_table_are_those_of_the_config() -> None:
    assert parse(["t.py"], {}) == Config(
        script="t.py", np=Np(low=1, high=NP_UNLIMITED, first=1), local_nodes=1, slots_word="auto"
    )


# What is asked of the library


def test_what_is_asked_of_the_library_has_defaults_that_ask_nothing() -> None:
    config = parse(["train.py"], {})
    assert (config.hang_timeout_s, config.save_timeout_s, config.partition_timeout_s) == (1800.0, 120.0, 30.0)
    assert (config.resume_from, config.restore_step, config.memory_limit_bytes) == ("", None, None)
    assert not config.allow_rollback
    assert not config.check_nan


def test_what_is_asked_of_the_library_can_be_said_by_flag_or_variable() -> None:
    argv = ("--hang-timeout=0", "--save-timeout=5", "--restore-step=0", "--resume-from=x", "--allow-rollback")
    config = parse([*argv, "--check-nan", "--memory-limit=8GB", "--partition-timeout", "7", "train.py"], {})
    assert config.partition_timeout_s == 7.0
    assert (config.hang_timeout_s, config.save_timeout_s, config.restore_step, config.resume_from) == (0, 5, 0, "x")
    assert config.allow_rollback
    assert config.check_nan
    assert config.memory_limit_bytes == 8_000_000_000
    environ = {"ELASTIC_RESTORE_STEP": "500", "ELASTIC_MEMORY_LIMIT": "1GiB", "ELASTIC_ALLOW_ROLLBACK": "1"}
    config = parse(["train.py"], environ)
    assert (config.restore_step, config.memory_limit_bytes, config.allow_rollback) == (500, 1 << 30, True)


def test_numbers_are_checked_also_where_paddles_flag_asks_for_it_unless_ours_says_no() -> None:
    assert parse(["train.py"], {"FLAGS_check_nan_inf": "1"}).check_nan
    assert parse(["train.py"], {"ELASTIC_CHECK_NAN": "true"}).check_nan
    assert not parse(["train.py"], {"FLAGS_check_nan_inf": "1", "ELASTIC_CHECK_NAN": "0"}).check_nan


def test_a_launcher_inside_a_worker_does_not_take_the_workers_wishes_for_its_own() -> None:
    inside = {
        "ELASTIC_FENCE": "a/1",
        "ELASTIC_RESTORE_STEP": "5",
        "ELASTIC_RESUME_FROM": "/x",
        "ELASTIC_CHECK_NAN": "1",
        "ELASTIC_NO_TORCH_PATCH": "1",
    }
    config = parse(["train.py"], inside)
    assert (config.restore_step, config.resume_from, config.check_nan) == (None, "", False)
    assert not config.no_torch_patch


@pytest.mark.parametrize(
    ("text", "size"),
    [("1B", 1), ("512b", 512), ("8GB", 8 * 10**9), ("8g", 8 * 10**9), ("1.5 GiB", 3 << 29), ("64MiB", 64 << 20)],
)
def test_an_amount_of_memory_is_read_as_people_write_it(text: str, size: int) -> None:
    assert readers.size(text) == size


def test_a_bound_of_a_log_may_be_a_number_of_bytes() -> None:
    assert readers.log_size("2000000") == 2_000_000
    assert "has no unit" in refusal("t.py", environ={"ELASTIC_MEMORY_LIMIT": "2000000"})


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--memory-limit", "lots"), "write 8GB or 512MiB"),
        (("--memory-limit", "0"), "not between 1 byte"),
        (("--memory-limit", "8"), "'8' has no unit; write 8GB or 8GiB"),
        (("--memory-limit", " 0.5 "), "write 0.5GB or 0.5GiB"),
        (("--memory-limit", "8589934592"), "write 8589934592B if it counts bytes"),
        (("--memory-limit", "5ib"), "not an amount of memory"),
        (("--memory-limit", "99999TB"), "not between 1 byte"),
        (("--restore-step", "-1"), "must be 0 or more, not -1"),
        (("--max-restarts", "1000001"), "must be 1000000 or less, not 1000001"),
        (("--restore-step", "last"), "not a whole number"),
        (("--hang-timeout", "soon"), "not a duration"),
        (("--save-timeout", "-1"), "not between 0"),
        (("--resume-from", " "), "not the name of a file or a directory"),
    ],
)
def test_a_wrong_wish_is_one_line_that_names_the_flag(argv: tuple[str, str], says: str) -> None:
    text = refusal(*argv, "train.py")
    assert text.startswith(argv[0])
    assert says in text
