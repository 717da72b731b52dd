"""What an agent says of its address, its interface, its container and its folders when it joins."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from launcher.agent import startup_notes
from launcher.agent.startup_notes import log_startup_notes
from launcher.config.parse import parse
from launcher.logs.logger import AgentLog
from launcher.net.addresses import bridge_hint, in_container
from launcher.net.traffic_variables import network_line
from launcher.system import node_lock

HOST = "10.0.0.7"
BOTH = {"NCCL_SOCKET_IFNAME": "ib0", "GLOO_SOCKET_IFNAME": "ib0"}


@pytest.mark.parametrize(
    ("owner", "nic", "environ", "line"),
    [
        ("eth0", "", {}, "this node is 10.0.0.7 on eth0; NCCL and gloo use eth0"),
        ("eth0", "eth1", {}, "this node is 10.0.0.7 on eth0; NCCL and gloo use eth1"),
        (
            "eth0",
            "",
            {"NCCL_SOCKET_IFNAME": "ib0"},
            "this node is 10.0.0.7 on eth0; NCCL uses ib0, gloo uses eth0, as NCCL_SOCKET_IFNAME says",
        ),
        (
            "eth0",
            "eth1",
            BOTH,
            "this node is 10.0.0.7 on eth0; NCCL and gloo use ib0, as NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME say",
        ),
        ("eth0", "", {"NCCL_SOCKET_IFNAME": "eth0"}, "this node is 10.0.0.7 on eth0; NCCL and gloo use eth0"),
        (
            None,
            "",
            {},
            "this node is 10.0.0.7, which no interface of this host has; NCCL and gloo choose an interface; "
            "--nic NAME selects one",
        ),
        ("lo", "", {"NCCL_SOCKET_IFNAME": ""}, "this node is 10.0.0.7 on lo; NCCL and gloo use lo"),
    ],
)
def test_the_line_says_which_address_which_interface_and_whose_value_counts(
    owner: str | None, nic: str, environ: dict[str, str], line: str
) -> None:
    assert network_line(HOST, owner, nic, environ) == line


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv"])
def test_a_container_is_known_by_what_its_engine_leaves_there(tmp_path: Path, mark: str) -> None:
    assert not in_container(tmp_path)
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).touch()
    assert in_container(tmp_path)


@pytest.mark.parametrize(
    ("groups", "inside"),
    [
        ("0::/\n", False),
        ("0::/init.scope\n", False),
        ("12:pids:/docker/0123\n0::/system.slice\n", True),
        ("0::/kubepods.slice/kubepods-pod1.slice\n", True),
    ],
)
def test_a_container_is_known_by_its_control_group(tmp_path: Path, groups: str, inside: bool) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/cgroup").write_text(groups)
    assert in_container(tmp_path) is inside


def test_an_address_of_dockers_bridge_with_a_store_elsewhere_is_told_with_both_mends() -> None:
    hint = bridge_hint("172.17.0.3", ["10.0.0.5:2379"], inside=True)
    assert hint.startswith("172.17.0.3 is an address of docker's bridge")
    for fix in ("--network host", "-p LOW-HIGH:LOW-HIGH", "--host ADDRESS", "--port-range LOW:HIGH"):
        assert fix in hint


@pytest.mark.parametrize(
    ("host", "servers", "inside"),
    [
        ("172.17.0.3", ("10.0.0.5:2379",), False),  # a machine whose own network is like that
        ("10.0.0.7", ("10.0.0.5:2379",), True),  # a network of the user's own, or the host's
        ("172.18.0.3", ("10.0.0.5:2379",), True),
        ("172.17.0.3", ("172.17.0.2:2379",), True),  # all of it runs on one machine
        ("127.0.0.1", ("127.0.0.1:2379",), True),
        ("machine-7", ("10.0.0.5:2379",), True),  # the fix is there already
        ("172.17.0.3", (), True),
    ],
)
def test_there_is_no_hint_where_nothing_is_wrong(host: str, servers: tuple[str, ...], inside: bool) -> None:
    assert bridge_hint(host, servers, inside=inside) == ""


class Told(AgentLog):
    """Keeps what is said, with how loud it is."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def info(self, text: str) -> None:
        self.said.append(("say", text))

    def debug(self, text: str) -> None:
        self.said.append(("detail", text))

    def warning(self, text: str) -> None:
        self.said.append(("warn", text))


def told(
    host: str, monkeypatch: pytest.MonkeyPatch, *, inside: bool = False, folder: str = "", **environ: str
) -> list[tuple[str, str]]:
    """What a node with this address says of itself, without the fixes; its disk has room."""
    monkeypatch.setattr(startup_notes, "in_container", lambda: inside)
    monkeypatch.setattr("launcher.net.addresses.interface", lambda host: "eth0")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: (10**12, 0, 10**12))
    flags = ["--checkpoint-dir", folder] if folder else []
    config = parse(["--elastic-server", "10.0.0.5:2379", "--job-id", "j1", *flags, "train.py"], {})
    agent_log = Told()
    log_startup_notes(agent_log, config, host, environ)
    return [
        (how, re.split(" names a proxy| is an address of docker|, which matches no|; use another", text)[0])
        for how, text in agent_log.said
    ]


def test_a_node_says_its_address_once_and_warnings_are_never_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "this node is 172.17.0.3 on eth0; NCCL and gloo use eth0"
    assert told("172.17.0.3", monkeypatch) == [("say", line)]
    assert told("172.17.0.3", monkeypatch, inside=True, http_proxy="p") == [
        ("say", line),
        ("warn", "http_proxy"),
        ("warn", "172.17.0.3"),
    ]


def test_on_the_loopback_the_address_is_a_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told("127.0.0.1", monkeypatch) == [("detail", "this node is 127.0.0.1 on eth0; NCCL and gloo use eth0")]


def test_an_interface_that_is_not_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    said = told("127.0.0.1", monkeypatch, NCCL_SOCKET_IFNAME="nope0", GLOO_SOCKET_IFNAME="lo")
    assert said[1:] == [("warn", "NCCL_SOCKET_IFNAME is nope0")]


def test_a_checkpoint_folder_that_cannot_be_made_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = told("127.0.0.1", monkeypatch, folder=str(tmp_path / "file" / "checkpoints"))
    assert said[1:] == [("warn", f"checkpoint directory: {tmp_path}/file is a file")]


def test_the_same_command_typed_twice_says_that_it_makes_one_node_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_lock, "folder", lambda: tmp_path)
    nodes = [("j1", f"{HOST}-00aa1z"), ("j1", f"{HOST}0-00bb1z"), ("j10", f"{HOST}-00cc1z"), ("j1.x", f"{HOST}-00dd1z")]
    held = [node_lock.hold(node_lock.lock_path(job, node)) for job, node in nodes]
    first, _ = told(HOST, monkeypatch)
    assert first == (
        "say",
        f"node {HOST}-00aa1z runs on this host in the same job: this command adds another node, "
        "which uses the same GPUs",
    )
    for one in held:
        os.close(one.fd)
    assert len(told(HOST, monkeypatch)) == 1
