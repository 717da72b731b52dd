"""What the doctor says of one machine."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.channel.messages import OwnFile, ScriptImport, ScriptImports
from launcher.config.config import Config
from launcher.doctor import machine
from launcher.doctor.machine import (
    DEAD,
    imports_check,
    may_raise_priority,
    network_checks,
    port_check,
    priority_check,
    python_check,
    shared_memory_check,
    variable_checks,
)
from launcher.doctor.torch_import import TorchReport, import_failure, torch_check
from launcher.net import ports
from launcher.nursery.preload import stamp
from launcher.system.checks import DETAILS_MAX, Check, CheckLevel, fail, lines, ok, warn
from launcher.system.folder_checks import CHECKPOINTS, LOG, folder_check
from launcher.workers.learned_cache import LearnedImports, UnfitModule, write_list

GB = 10**9


def levels(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.level, check.name) for check in checks]


# How a check is shown


def test_a_check_is_one_line_with_its_level_its_name_and_the_mend() -> None:
    assert lines(ok("proxies", "none")) == ["ok    proxies: none"]
    assert lines(warn("ports", "3 taken", "widen it")) == ["warn  ports: 3 taken; widen it"]
    assert lines(fail("torch", "a\nb")) == ["fail  torch: a b"]


def test_its_table_is_below_it_and_has_a_limit() -> None:
    shown = lines(fail("x", "y", "", tuple(f"row {number}" for number in range(DETAILS_MAX + 5))))
    assert shown[1] == "        row 0"
    assert len(shown) == 1 + DETAILS_MAX + 1
    assert shown[-1].strip() == "and 5 more"


def test_colours_are_on_the_level_alone() -> None:
    assert lines(fail("x", "y"), colours=True) == ["\x1b[1;31mfail\x1b[0m  x: y"]


# What scripts import


def test_the_modules_that_are_preloaded_for_a_script_are_listed_and_those_that_are_not_with_the_reason(
    tmp_path: Path,
) -> None:
    script, module = tmp_path / "train.py", tmp_path / "foo.py"
    for path in (script, module):
        path.touch()
    modules = tuple(ScriptImport(name, str(module)) for name in ("numpy", "pandas", "foo"))
    known = ScriptImports(modules, (), (OwnFile("__main__", str(script)),))
    unfit = UnfitModule("foo", "reads X", stamp(str(module)))
    folder = tmp_path / "elastic-launch" / "imports"
    write_list(folder, "0" * 64, LearnedImports(known, (stamp(str(script)),), (unfit,)))
    check = imports_check(folder)
    assert (check.level, check.text) == (CheckLevel.OK, f"known for 1 command, in {folder}")
    assert check.details == (f"{script}: preloads numpy, pandas; not foo: it reads X",)


# Python and torch


def test_an_old_python_fails_with_the_one_that_is_needed() -> None:
    assert python_check((3, 10), "3.10.2") == fail("python", "3.10.2 is too old", "use Python 3.11 or newer")
    assert python_check((3, 12), "3.12.0").level is CheckLevel.OK


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("ImportError: libssl.so.1.1: cannot open shared object file: No such file or directory", "libssl3"),
        ("ImportError: libcrypto.so.3: cannot open shared object file: No such file or directory", "LD_LIBRARY_PATH"),
        ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory", "install torch"),
        ("OSError: libcublas.so.12: cannot open shared object file: No such file or directory", "LD_LIBRARY_PATH"),
        ("ImportError: libcuda.so.1: cannot open shared object file: No such file or directory", "NVIDIA driver"),
        ("ImportError: libgomp.so.1: cannot open shared object file: No such file or directory", "libgomp1"),
        ("ImportError: /x/libstdc++.so.6: version `GLIBCXX_3.4.30' not found", "newer libstdc++"),
        ("ImportError: libfoo.so.9: cannot open shared object file: No such file or directory", "has this library"),
        ("ImportError: /x/libtorch.so: undefined symbol: ncclCommSplit", "two versions"),
        ("ModuleNotFoundError: No module named 'torch'", "pip install torch"),
        ("ValueError: never seen", "import torch"),
    ],
)
def test_a_failing_import_shows_the_linkers_error_and_the_mend_that_fits_it(error: str, hint: str) -> None:
    complaint = f'Traceback (most recent call last):\n  File "x", line 1, in <module>\n    import torch\n{error}\n'
    check = import_failure(1, complaint)
    assert (check.level, check.name, check.text) == (CheckLevel.FAIL, "torch", f"import torch fails: {error}")
    assert hint in check.hint


def test_an_import_that_dies_of_a_signal_names_it() -> None:
    assert "SIGILL" in import_failure(-4, "").text


def test_torch_that_cannot_use_the_cards_is_told_with_the_reason() -> None:
    blind = TorchReport(torch="2.13.0+cpu", cuda="", gpus=0, gloo=True, nccl="")
    assert levels(torch_check(blind, 0)) == [("ok", "torch"), ("ok", "backends")]
    checks = torch_check(blind, 8)
    assert levels(checks) == [("ok", "torch"), ("warn", "torch's GPUs"), ("warn", "backends")]
    assert "built for CUDA" in checks[1].hint
    old = TorchReport(torch="2.13.0+cu128", cuda="12.8", gpus=0, gloo=True, nccl="2.27.5")
    assert "driver" in torch_check(old, 8)[1].hint
    assert torch_check(old, 8)[2].text == "gloo, NCCL 2.27.5"
    without = TorchReport(torch="2.13.0", cuda="", gpus=0, gloo=False, nccl="")
    assert torch_check(without, 0)[-1].level is CheckLevel.FAIL


# Variables


@pytest.mark.parametrize("name", DEAD)
def test_a_variable_without_effect_is_told_with_what_to_do_instead(name: str) -> None:
    (check,) = variable_checks({name: "1"}, ["eth0"])
    assert (check.level, check.text) == (CheckLevel.WARN, f"{name} is set and has no effect")
    assert check.hint == DEAD[name]


def test_paddles_three_variables_are_among_them() -> None:
    assert {name for name in DEAD if name.startswith("FLAGS_")} == {
        "FLAGS_sync_nccl_allreduce",
        "FLAGS_fuse_parameter_memory_size",
        "FLAGS_fuse_parameter_groups_size",
    }


@pytest.mark.parametrize(
    ("variable", "value", "fits"),
    [
        ("NCCL_SOCKET_IFNAME", "eth0", True),
        ("NCCL_SOCKET_IFNAME", "eth", True),
        ("NCCL_SOCKET_IFNAME", "ib0,eth1", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", True),
        ("NCCL_SOCKET_IFNAME", "^docker0", True),
        ("NCCL_SOCKET_IFNAME", "=eth", False),
        ("NCCL_SOCKET_IFNAME", "bond0", False),
        ("NCCL_SOCKET_IFNAME", "", True),
        ("GLOO_SOCKET_IFNAME", "eth0", True),
        ("GLOO_SOCKET_IFNAME", "eth", False),
    ],
)
def test_an_interface_that_is_named_and_not_there_fails(variable: str, value: str, fits: bool) -> None:
    (check,) = variable_checks({variable: value}, ["lo", "eth0", "eth1"])
    assert (check.level is CheckLevel.OK) is fits
    if not fits:
        assert f"{variable} is {value}" in check.text
        assert "lo, eth0, eth1" in check.hint


# The address


def test_a_name_that_is_not_known_here_is_told() -> None:
    check = next(network_checks(Config(script="", host="no-such-host.invalid"), {}))
    assert (check.level, check.text) == (CheckLevel.WARN, "this host cannot resolve the name no-such-host.invalid")


def test_an_address_that_others_do_not_reach_fails_with_those_that_they_may() -> None:
    (check,) = network_checks(Config(script="", servers=("203.0.113.77:2379",), host="127.0.0.1"), {})
    assert check.level is CheckLevel.FAIL
    assert "--host 127.0.0.1 is reachable only from this host" in check.text


def test_a_container_on_dockers_bridge_is_told_with_the_mends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "in_container", lambda: True)
    address, container = network_checks(Config(script="", servers=("203.0.113.77:2379",), host="172.17.0.9"), {})
    assert address.text.startswith("this node is 172.17.0.9")
    assert (container.level, container.name) == (CheckLevel.WARN, "container")
    assert "--network host" in container.text


# Ports


def test_ports_of_the_range_that_are_taken_are_named() -> None:
    with ports.hold("", 1) as held, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        (first,) = held
        check = port_check((first, first))
        assert check.level is CheckLevel.FAIL
        assert f"0 of 1 of {first}:{first} are free" in check.text
        assert "widen --port-range" in check.hint


def test_a_range_with_some_taken_ports_warns_and_one_without_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_free", lambda port: port > 35007)
    check = port_check((35000, 35020))
    assert (check.level, check.text) == (
        CheckLevel.WARN,
        "13 of 21 of 35000:35020 are free; taken: 35000, 35001, 35002, 35003, 35004 …",
    )
    assert port_check((36000, 36010)).level is CheckLevel.OK
    assert port_check(None).level is CheckLevel.OK


# Folders and memory


def test_a_folder_that_can_be_written_is_fine_and_nothing_is_made(tmp_path: Path) -> None:
    room = lambda folder: (100 * GB, 0, 50 * GB)  # noqa: E731
    check = folder_check(LOG, tmp_path / "a" / "b", room)
    assert (check.level, check.text) == (CheckLevel.OK, f"{tmp_path}/a/b can be created, 50.0 GB free of 100.0 GB")
    assert folder_check(LOG, tmp_path, room).text.startswith(f"{tmp_path} is writable")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("total", "free", "level"), [
    (100 * GB, 4 * GB, CheckLevel.WARN), (10 * GB, GB - 1, CheckLevel.WARN), (10 * GB, GB, CheckLevel.OK)
])  # fmt: skip
def test_a_disk_below_1_gb_or_5_percent_is_told(tmp_path: Path, total: int, free: int, level: CheckLevel) -> None:
    check = folder_check(LOG, tmp_path, lambda folder: (total, total - free, free))
    assert check.level is level


def test_a_folder_that_is_a_file_or_on_a_full_disk_fails_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check = folder_check(CHECKPOINTS, tmp_path / "file" / "x")
    assert check.level is CheckLevel.FAIL
    assert "file is a file" in check.text
    assert "--checkpoint-dir" in check.hint
    assert folder_check(LOG, Path("/proc/x")).level is CheckLevel.FAIL

    def full(folder: Path) -> tuple[int, int, int]:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert folder_check(LOG, tmp_path, full).hint == "free some space"


def test_dockers_own_64_mb_of_shared_memory_are_told_with_the_flags_that_give_more() -> None:
    check = shared_memory_check(Path("/dev/shm"), lambda folder: (64 << 20, 0, 64 << 20))
    assert (check.level, check.text) == (CheckLevel.WARN, "/dev/shm has 64 MB free of 64 MB")
    assert "--shm-size" in check.hint
    assert "--ipc host" in check.hint
    assert shared_memory_check(Path("/dev/shm"), lambda folder: (GB, 0, GB)).level is CheckLevel.OK
    assert "does not exist" in shared_memory_check(Path("/no/such")).text


# Priority


def test_a_priority_that_may_be_raised_or_was_chosen_is_told() -> None:
    assert lines(priority_check(0, raised=True)) == ["ok    priority: the agent runs at nice -10, workers at nice 0"]
    assert lines(priority_check(5, raised=False)) == [
        "ok    priority: started at nice 5; the agent and its workers keep it"
    ]


def test_a_priority_that_may_not_be_raised_is_a_note_with_the_ways_to_allow_it() -> None:
    check = priority_check(0, raised=False)
    assert check.level is CheckLevel.OK
    assert all(way in check.hint for way in ("/etc/security/limits.conf", "LimitNICE=-10", "CAP_SYS_NICE"))


def test_the_doctor_finds_what_a_process_finds_that_raises_its_priority_and_raises_none_itself() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    script = "from launcher.system.priority import raise_priority; print(raise_priority())"
    tried = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert str(may_raise_priority()) == tried.stdout.strip()
    assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)) == before
