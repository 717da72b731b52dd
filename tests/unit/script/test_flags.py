"""What a script says in Python about its job, as flags; and how the program that runs is named for the launcher."""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import elastic
from elastic.errors import ConfigError, ScriptMistake
from elastic.script import error_report, flags, relaunch
from launcher.config.config import PYTHON_ENDINGS
from launcher.config.parse import parse

NODES = [{"addr": "192.168.1.12"}, {"addr": "192.168.1.11"}]


def refused(**said: Any) -> str:
    with pytest.raises(ConfigError) as told:
        flags.flags(**said)
    text = str(told.value)
    assert "\n" not in text
    return text


def test_what_the_page_of_oneflow_says_becomes_the_flags_of_the_launcher() -> None:
    made = flags.flags(nodes=NODES, gpu_device_num=1, ctrl_port=9988)
    assert made == ("--ips=192.168.1.12,192.168.1.11", "--nproc-per-node=1", "--ctrl-port=9988")
    config = parse([*made, "train.py"], {})
    assert config.ips == ("192.168.1.12", "192.168.1.11")
    assert (config.slots, config.ctrl_port) == (1, 9988)


def test_without_nodes_the_number_of_cards_is_all_that_is_said() -> None:
    assert flags.flags(gpu_device_num=2) == ("--nproc-per-node=2",)
    assert flags.flags() == ()


def test_further_flags_keep_their_names_and_switches_take_no_value() -> None:
    more = {
        "elastic_server": ["a:2379", "b:2379"],
        "np": "1:4",
        "stop_timeout": 2.5,
        "rerun": True,
        "quiet": False,
        "host": None,
    }
    made = flags.flags(more=more)
    assert made == ("--elastic-server=a:2379,b:2379", "--np=1:4", "--stop-timeout=2.5", "--rerun")
    assert parse([*made, "--job-id=j", "train.py"], {}).rerun


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"rerun": 1}, "--rerun is a switch and takes no value"),
        ({"log_dir": True}, "--log-dir needs a value (DIR)"),
        ({"log_dir": True, "np": 2}, "--log-dir needs a value (DIR)"),
    ],
)
@pytest.mark.parametrize("program", [("--", "train.py"), ("-m", "pkg.train"), ("--", sys.executable, "train")])
def test_the_launcher_refuses_a_value_for_a_switch_and_a_switch_for_a_value(
    more: dict[str, Any], says: str, program: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse([*flags.flags(more=more), *program], {})


def test_an_address_of_ipv6_may_have_brackets() -> None:
    assert flags.addresses([{"addr": "[fd00::1]"}, {"addr": " fd00::2 "}]) == ("fd00::1", "fd00::2")


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([], "nodes is empty"),
        ("192.168.1.12", "not a list"),
        ({"addr": "a"}, "not a list"),
        (["a"], 'write {"addr": "a"}'),
        ([{"addr": "a"}, 3], "nodes[1] is 3, not a dict"),
        ([{}], 'nodes[0] has no "addr"'),
        ([{"address": "a"}], 'nodes[0] has no "addr"'),
        ([{"addr": 12}], "nodes[0]: the address is 12, not a string"),
        ([{"addr": " "}], "nodes[0]: the address is empty"),
        ([{"addr": "a,b"}], "more than one address"),
        ([{"addr": "a", "port": 1}], "nodes[0] has 'port'"),
        ([{"addr": "a"}, {"addr": "b"}, {"addr": "a"}], "nodes[2] has the address of nodes[0], a; list each node once"),
        ([{"addr": "::1"}, {"addr": "[::1]"}], "nodes[1] has the address of nodes[0]"),
    ],
)
def test_a_wrong_list_of_nodes_is_one_line_that_names_the_place(nodes: Any, says: str) -> None:
    assert says in refused(nodes=nodes)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"gpu_device_num": 0}, "gpu_device_num is 0; it must be 1 or more"),
        ({"gpu_device_num": "2"}, "gpu_device_num is '2', not a whole number"),
        ({"gpu_device_num": True}, "gpu_device_num is True, not a whole number"),
        ({"ctrl_port": 0}, "ctrl_port is 0; it must be 1 to 65535"),
        ({"ctrl_port": 65536}, "ctrl_port is 65536"),
        ({"more": {"np": {}}}, "np is {}"),
        ({"more": {"elastic_server": []}}, "elastic_server is []"),
        ({"nodes": NODES, "more": {"ips": "a,b"}}, "ips and nodes are the same setting"),
        (
            {"gpu_device_num": 1, "more": {"nproc_per_node": 1}},
            "nproc_per_node and gpu_device_num are the same setting",
        ),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_argument(said: dict[str, Any], says: str) -> None:
    assert says in refused(**said)


def test_a_long_value_is_cut_in_a_message() -> None:
    assert len(refused(nodes=[["x" * 1000]])) < 200


def main(file: str | None = None, spec: str | None = None) -> ModuleType:
    made = ModuleType("__main__")
    if file is not None:
        made.__file__ = file
    made.__spec__ = None if spec is None else ModuleSpec(spec, None)
    return made


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    return str(tmp_path / "train.py")


def test_a_script_is_started_again_as_it_was_typed_with_its_arguments(script: str) -> None:
    assert relaunch.program(main(script), [script, "--np", "a b"]) == ("--", script, "--np", "a b")


def test_a_script_that_changed_its_own_name_is_found_by_its_file(script: str) -> None:
    assert relaunch.program(main(script), ["my program", "x"]) == ("--", script, "x")


def test_a_module_is_started_again_as_a_module(script: str) -> None:
    assert relaunch.program(main(script, "pkg.train"), [script, "x"]) == ("-m", "pkg.train", "x")
    assert relaunch.program(main(script, "pkg.__main__"), [script]) == ("-m", "pkg")


def test_what_the_launcher_would_not_give_to_python_is_given_to_it_here(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("")
    named = str(tmp_path / "train")
    assert relaunch.program(main(named), [named, "x"]) == ("--", sys.executable, named, "x")
    assert relaunch.PYTHON_ENDINGS == PYTHON_ENDINGS


@pytest.mark.parametrize(
    ("file", "argv"),
    [(None, ["-c"]), (None, [""]), (None, [__file__]), ("<stdin>", [""]), ("/nowhere/train.py", ["x"])],
)
def test_without_a_script_there_is_nothing_to_start_again(file: str | None, argv: list[str]) -> None:
    with pytest.raises(ConfigError, match="here is no script"):
        relaunch.program(main(file), argv)


def test_a_mistake_is_said_once_in_one_line_and_ends_the_script_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(ScriptMistake) as told,
        error_report.reporting_config_errors(),
        error_report.reporting_config_errors(),
    ):
        raise ConfigError("nodes is\nempty")
    assert isinstance(told.value, ConfigError)
    assert isinstance(told.value, SystemExit)
    assert (told.value.code, told.value.exit_code, str(told.value)) == (2, 2, "nodes is empty")
    assert capsys.readouterr().err == "elastic: error: nodes is empty\n"


@pytest.mark.parametrize("mark", ["ELASTIC_FENCE", "TORCHELASTIC_RUN_ID", "RANK"])
def test_a_worker_of_any_launcher_is_known_by_its_environment(mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in relaunch.WORKER_MARKS:
        monkeypatch.delenv(name, raising=False)
    assert not relaunch.inside_worker()
    monkeypatch.setenv(mark, "0")
    assert relaunch.inside_worker()
    elastic.launch(nodes=NODES, gpu_device_num=1)  # It does nothing: this test goes on.
    elastic.config(nodes=NODES, gpu_device_num=1)  # And warns of nothing.


@pytest.mark.parametrize("python", ["", "/nowhere/python"])
def test_a_python_that_cannot_be_started_again_is_one_line(python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__file__ = __file__  # Whatever runs the tests may have no script.
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(ConfigError, match="cannot be restarted"):
        relaunch.become_launcher(())
