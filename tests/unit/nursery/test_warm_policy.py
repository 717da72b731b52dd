"""Which workers start warm."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.config.parse import parse
from launcher.nursery.warm_policy import NO_WARM, read_early, why_cold
from launcher.workers.nursery_process import preload_config

PYTHON = (sys.executable, "train.py")


@pytest.mark.parametrize(
    ("line", "cold"),
    [
        (["train.py"], ""),
        (["-m", "package.train"], ""),
        (["--no-preload", "train.py"], NO_WARM),
        (["run.sh"], "run.sh is not a Python script"),
    ],
)
def test_what_is_run_by_python_starts_warm_unless_that_is_not_wanted(line: list[str], cold: str) -> None:
    assert preload_config(parse(line, {}), {}, {}).cold == cold


def test_a_variable_that_watches_python_from_its_first_import_forbids_it() -> None:
    assert preload_config(parse(["train.py"], {}), {"PYTHONVERBOSE": "1"}, {}).cold == "PYTHONVERBOSE is set"
    assert preload_config(parse(["train.py"], {}), {"PYTHONVERBOSE": ""}, {}).cold == ""


def test_modules_of_the_script_are_looked_for_where_python_does(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    assert preload_config(parse([str(script)], {}), {}, {}).folder == str(tmp_path.resolve())
    assert preload_config(parse(["-m", "train"], {}), {}, {}).folder == str(Path.cwd())
    assert preload_config(parse([str(script)], {}), {"PYTHONSAFEPATH": "1"}, {}).folder is None


def test_the_nursery_has_the_variables_that_are_read_early_as_its_workers_have_them() -> None:
    wishes = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "NCCL_SOCKET_IFNAME": "lo"}
    assert dict(preload_config(parse(["train.py"], {}), {"OMP_NUM_THREADS": "3"}, wishes).wishes) == {
        "PYTHONUNBUFFERED": "1"
    }


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (PYTHON, ""),
        ((sys.executable, "-m", "train", "-u"), ""),
        ((sys.executable, "-c", "pass"), ""),
        ((sys.executable,), "Python has command-line flags"),
        ((sys.executable, "-m"), "Python has command-line flags"),
        ((sys.executable, "-u", "train.py"), "Python has command-line flags"),
        (("/usr/bin/other", "train.py"), "other is not run by this Python"),
        ((), "nothing is not run by this Python"),
    ],
)
def test_only_what_this_python_runs_without_flags_is_forked(argv: tuple[str, ...], why: str) -> None:
    assert why_cold(argv, {}, {}) == why


@pytest.mark.parametrize("name", ["TORCH_LOGS", "PYTHONPATH", "PYTHONHASHSEED", "KMP_AFFINITY", "LD_PRELOAD", "TZ"])
def test_a_worker_with_another_value_than_the_nursery_had_at_its_imports_starts_cold(name: str) -> None:
    assert why_cold(PYTHON, {name: "1"}, {name: "1"}) == ""
    for env, nursery in (({name: "1"}, {}), ({}, {name: "1"}), ({name: "1"}, {name: "2"})):
        assert why_cold(PYTHON, env, nursery) == f"{name} differs from its value at the start of the fork server"


@pytest.mark.parametrize(
    "name", ["RANK", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_VISIBLE_DEVICES"]
)
def test_what_is_read_when_it_is_used_may_differ(name: str) -> None:
    assert not read_early(name)
    assert why_cold(PYTHON, {name: "1"}, {name: "2"}) == ""


def test_a_number_of_threads_may_differ_and_another_word_for_it_may_not() -> None:
    name = "OMP_NUM_THREADS"
    assert why_cold(PYTHON, {name: "1"}, {}) == why_cold(PYTHON, {name: "4"}, {name: "1"}) == ""
    for env in ({name: "4,2"}, {name: "0"}, {}):
        assert why_cold(PYTHON, env, {name: "1"}) == f"{name} differs from its value at the start of the fork server"
