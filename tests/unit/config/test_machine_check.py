"""What is checked on the machine itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.config.config import Config, worker_argv
from launcher.config.devices import share_gpus, visible_gpus
from launcher.config.machine_checks import check
from launcher.config.parse import parse

NO_CARDS = {"CUDA_VISIBLE_DEVICES": "", "PATH": os.environ["PATH"]}


def checked(*argv: str, environ: dict[str, str] | None = None) -> Config:
    """A command line that went through both steps."""
    environ = NO_CARDS if environ is None else environ
    return check(parse(argv, environ), environ)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return path


def test_a_python_script_is_run_by_this_python(script: Path) -> None:
    assert worker_argv(checked(str(script), "--lr", "1")) == (sys.executable, str(script), "--lr", "1")


def test_a_module_is_run_by_this_python() -> None:
    assert worker_argv(checked("-m", "json.tool", "x")) == (sys.executable, "-m", "json.tool", "x")


def test_an_executable_is_run_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    assert worker_argv(checked(str(path), "x")) == (str(path), "x")


def test_an_executable_is_found_on_the_path() -> None:
    found = worker_argv(checked("sh", "-c", "true"))
    assert os.path.isabs(found[0])
    assert found[1:] == ("-c", "true")


def test_a_module_of_the_folder_where_the_user_stands_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.chdir(tmp_path)
    assert checked("-m", "mine.train").script == "mine.train"


@pytest.mark.parametrize("name", ["no.such.module", "elastic.no_such", "train.py/x", "a..b"])
def test_a_module_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="module"):
        checked("-m", name)


def test_a_missing_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no script"):
        checked(str(tmp_path / "missing.py"))
    with pytest.raises(ConfigError, match="there is no script"):
        checked("no-such-command")


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        checked(str(tmp_path))


def test_a_file_that_is_not_executable_is_told_how_to_become_so(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match=r"chmod \+x"):
        checked(str(path))


def test_a_script_that_cannot_be_read_is_refused(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root reads everything, so the kernel's answer is given here.
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    with pytest.raises(ConfigError, match="cannot be read"):
        checked(str(script))


def test_another_system_is_refused(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(ConfigError, match="Linux"):
        checked(str(script))


def test_a_loopback_host_with_a_remote_server_is_refused(script: Path) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
        checked("--elastic-server", "203.0.113.77:2379", "--job-id", "j", "--host", "127.0.0.1", str(script))


def test_a_server_whose_name_does_not_resolve_yet_is_left_to_the_agent(script: Path) -> None:
    config = checked("--elastic-server", "etcd.invalid:2379", "--job-id", "j", str(script))
    assert config.servers == ("etcd.invalid:2379",)


def test_checkpoints_lie_under_the_jobs_name(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = checked("--job-id", "j1", str(script))
    assert config.checkpoint_dir == str(tmp_path / "checkpoints" / "j1")
    assert config.log_dir == str(tmp_path / "log")
    assert not list(tmp_path.glob("checkpoints*"))


def test_a_job_without_a_server_gets_a_random_name(script: Path) -> None:
    first, second = checked(str(script)).job_id, checked(str(script)).job_id
    assert first
    assert first != second


# Lists of servers and workers


def test_a_node_takes_the_name_that_the_lists_have_for_it(script: Path) -> None:
    lists = ("--servers=127.0.0.1:6170,203.0.113.77:6170", "--workers=127.0.0.1,203.0.113.77")
    assert checked(*lists, str(script)).host == "127.0.0.1"
    assert checked(*lists, "--host", "203.0.113.77", str(script)).host == "203.0.113.77"


def test_a_pods_address_is_looked_up_in_the_lists(script: Path) -> None:
    lists = ("--servers=localhost:6170,203.0.113.77:6170", "--workers=localhost")
    assert checked(*lists, str(script), environ={**NO_CARDS, "POD_IP": "127.0.0.1"}).host == "localhost"


def test_a_machine_that_is_in_none_of_the_lists_is_refused(script: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--servers, --workers .* has no address of this machine"):
        checked("--servers=203.0.113.77:6170", "--workers=203.0.113.78", str(script))
    with pytest.raises(ConfigError, match=r"^--host 203\.0\.113\.79 is not in --servers, --workers "):
        checked("--servers=127.0.0.1:6170", "--workers=127.0.0.1", "--host", "203.0.113.79", str(script))


def test_a_process_of_a_parameter_server_job_is_not_counted_by_cards(script: Path) -> None:
    environ = {**NO_CARDS, "CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert checked("--server-num=1", "--worker-num=2", str(script), environ=environ).slots == 1


# Cards


def test_a_node_has_one_worker_for_each_visible_card(script: Path) -> None:
    environ = {**NO_CARDS, "CUDA_VISIBLE_DEVICES": "3, 1,2"}
    assert checked(str(script), environ=environ).slots == 3
    assert checked("--nproc-per-node", "2", str(script), environ=environ).slots == 2
    assert checked("--nproc-per-node", "gpu", str(script), environ=environ).slots == 3


def test_a_machine_without_cards_runs_one_worker(script: Path) -> None:
    assert checked(str(script)).slots == 1
    with pytest.raises(ConfigError, match="no GPU"):
        checked("--nproc-per-node", "gpu", str(script))


def test_local_nodes_share_the_cards(script: Path) -> None:
    environ = {**NO_CARDS, "CUDA_VISIBLE_DEVICES": "0,1,2,3,4"}
    assert checked("--local-nodes", "2", str(script), environ=environ).slots == 2


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("", ()), ("-1", ()), ("0", ("0",)), ("1,0", ("1", "0")), ("0,-1,2", ("0",)), ("GPU-a,MIG-b", ("GPU-a", "MIG-b"))],
)
def test_cards_are_those_that_cuda_would_show(text: str, gpus: tuple[str, ...]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": text}) == gpus


def test_cards_are_counted_by_nvidia_smi_when_none_are_named(tmp_path: Path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}) == ()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA X (UUID: GPU-1)'\necho '  MIG 1g'\necho 'GPU 1: NVIDIA X'\n")
    program.chmod(0o755)
    assert visible_gpus({"PATH": str(tmp_path)}) == ("0", "1")
    program.write_text("#!/bin/sh\necho 'no driver'\nexit 9\n")
    assert visible_gpus({"PATH": str(tmp_path)}) == ()


def test_cards_are_shared_out_without_overlap() -> None:
    assert share_gpus(("3", "1", "2"), 3, 1) == (("3",), ("1",), ("2",))
    assert share_gpus(("0", "1", "2", "3", "4"), 2, 2) == (("0", "1"), ("2", "3"))
    assert share_gpus(("0",), 2, 1) is None


# The checkpoint to start from


def test_a_checkpoint_to_start_from_is_a_file_or_a_folder_and_becomes_a_full_path(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    assert checked("--resume-from", "old", str(script)).resume_from == str(tmp_path / "old")
    assert checked("--resume-from", str(script), str(script)).resume_from == str(script)
    assert checked(str(script)).resume_from == ""


def test_a_checkpoint_to_start_from_that_is_not_there_is_refused(script: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing does not exist; check the path, every node has to read it"):
        checked("--resume-from", str(tmp_path / "missing"), str(script))


def test_each_file_of_a_log_needs_its_share_of_the_bound() -> None:
    with pytest.raises(ConfigError, match="--log-rotate 5 needs --log-max-bytes 3072KiB or more"):
        check(parse(["--log-rotate", "5", "--log-max-bytes", "2MiB", "train.py"], {}), {})
