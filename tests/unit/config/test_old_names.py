"""Old names of flags and variables: they work, with one warning for each."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.config import argv as command_line
from launcher.config.flags import FLAGS
from launcher.config.parse import parse
from launcher.config.setting import Flag, option
from launcher.local.commands import node_environments

TEXTS = {"save_timeout": "9s", "stop_timeout": "9s", "failure_stop_timeout": "1s", "serve": "10.0.0.5"}
RENAMED = [flag for flag in FLAGS if flag.old_name]
VARIABLES = [(flag, old) for flag in FLAGS for old in flag.deprecated if not old.startswith("--")]


def text(flag: Flag) -> str:
    return "1" if flag.switch else TEXTS.get(flag.name, "2" if flag.metavar == "DURATION" else "127.0.0.1:6170")


def test_ten_flags_have_an_old_name() -> None:
    assert len(RENAMED) == 10


@pytest.mark.parametrize("flag", RENAMED, ids=lambda flag: str(flag.old_name))
def test_an_old_flag_sets_the_new_one_and_warns_once(flag: Flag) -> None:
    value = () if flag.switch else (text(flag),)
    old, new = option(flag.old_name), flag.option
    config = parse([f"--{flag.old_name}", *value, old, *value, "t.py"], {})
    assert config.warnings == (f"{old} is now {new}; the old name works until 0.3",)
    assert {name for name, _ in config.given} == {flag.name}
    current = parse([new, *value, "t.py"], {})
    assert current.warnings == ()
    assert getattr(config, flag.field) == getattr(current, flag.field)


@pytest.mark.parametrize(("flag", "old"), VARIABLES, ids=[old for _, old in VARIABLES])
def test_an_old_variable_sets_the_new_one_and_warns_once(flag: Flag, old: str) -> None:
    more = {"ELASTIC_JOB_ID": "j", "ELASTIC_WORKER_NUM": "1", "ELASTIC_SERVER_NUM": "1"}
    several = {name: more[name] for name in more if (name == "ELASTIC_JOB_ID") == (flag.group != "Parameter-Server")}
    others = {**several, **({"ELASTIC_HETER_WORKER_NUM": "1"} if flag.name == "heter_workers" else {})}
    if flag.name == "servers":
        del others["ELASTIC_SERVER_NUM"]
    new = flag.variables[0]
    config = parse(["t.py"], {old: text(flag), **others})
    assert config.warnings == (f"{old} is now {new}; the old name works until 0.3",)
    assert dataclasses.replace(config, warnings=()) == parse(["t.py"], {new: text(flag), **others})


def test_an_old_name_that_does_not_count_is_no_warning() -> None:
    environ = {"ELASTIC_GRACE": "9s", "ELASTIC_STOP_TIMEOUT": "7s"}
    config = parse(["t.py"], environ)
    assert (config.stop_timeout_s, config.warnings) == (7.0, ())
    assert parse(["--stop-timeout", "5s", "t.py"], {"ELASTIC_GRACE": "9s"}).warnings == ()


def test_the_variable_that_is_named_after_its_flag_is_no_old_name() -> None:
    assert parse(["t.py"], {"ELASTIC_ELASTIC_SERVER": "h:1", "ELASTIC_JOB_ID": "j"}).warnings == ()


def test_further_nodes_find_the_new_names_and_do_not_warn_again() -> None:
    environ = {"ELASTIC_GRACE": "9s", "ELASTIC_SETTLE": "2s", "ELASTIC_JOIN_WINDOW": "3s", "OTHER": "x"}
    config = parse(["t.py"], environ)
    [node] = node_environments(config, environ)
    assert node == {"ELASTIC_STOP_TIMEOUT": "9s", "ELASTIC_JOIN_WINDOW": "3s", "OTHER": "x"}
    assert environ["ELASTIC_GRACE"] == "9s"


def test_other_commands_warn_too() -> None:
    environ = {"ELASTIC_SERVER": "h:1", "ELASTIC_GRACE": "9s"}
    lines = command_line.named_deprecations({}, environ, ("elastic_server", "job_id"))
    assert lines == ("ELASTIC_SERVER is now ELASTIC_ETCD; the old name works until 0.3",)
    assert command_line.named_deprecations({"elastic_server": "g:1"}, environ, ("elastic_server",)) == ()
