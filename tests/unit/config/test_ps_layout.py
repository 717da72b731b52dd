"""From the flags of a parameter-server job to its mode, its roles, and the ports of each node."""

from __future__ import annotations

import pytest

from elastic.core.model import NP_UNLIMITED, Np
from elastic.core.ps.model import PsLayout
from elastic.errors import ConfigError
from launcher.config.config import Config
from launcher.config.parse import parse
from launcher.config.ps_layout import (
    TASKS_PER_NODE_MAX,
    listed_hosts,
    static_hosts,
    wanted_ports,
)
from launcher.net.endpoints import parse_host_port

ETCD = ("--elastic-server", "10.0.0.5:2379", "--job-id", "j1")

SERVERS = "--servers=192.168.0.16:6170,192.168.0.17:6170"
WORKERS = "--workers=192.168.0.16:6171,192.168.0.16:6172,192.168.0.17:6171,192.168.0.17:6172"
HETERS = "--heter-workers=192.168.0.16:6172,192.168.0.17:6172"
"""As in the documentation of paddle.distributed.launch."""


def read(*flags: str, environ: dict[str, str] | None = None) -> Config:
    return parse([*flags, "train.py", "--run-mode", "of the script"], environ or {})


def roles(*flags: str) -> PsLayout:
    found = read(*flags).roles
    assert found is not None
    return found


def refusal(*flags: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        read(*flags, environ=environ)
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert "\n" not in text
    return text


# The mode


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ((), "collective"),
        (("--run-mode", "collective"), "collective"),
        (("--ips", "a,b"), "collective"),
        (("--server-num", "2", "--worker-num", "2"), "ps"),
        ((SERVERS, WORKERS), "ps"),
        (("--run-mode=ps", SERVERS, WORKERS), "ps"),
        ((SERVERS, "--workers=192.168.0.16,192.168.0.17", HETERS), "ps-heter"),
        (("--server-num=1", "--worker-num=1", "--heter-worker-num=1"), "ps-heter"),
        (("--run-mode", "ps-heter", "--server-num=1", "--worker-num=1", "--heter-worker-num=1"), "ps-heter"),
    ],
)
def test_the_mode_is_told_by_the_flags(flags: tuple[str, ...], mode: str) -> None:
    config = read(*flags)
    assert config.run_mode == mode
    assert (config.roles is None) is (mode == "collective")


def test_a_variable_tells_the_mode_as_its_flag_does() -> None:
    assert read(environ={"ELASTIC_SERVER_NUM": "1", "ELASTIC_WORKER_NUM": "2"}).run_mode == "ps"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--run-mode", "collective", SERVERS, WORKERS), ("--run-mode collective", "--servers", "--workers")),
        (("--ips", "a,b", SERVERS, WORKERS), ("--ips", "--servers", "--workers")),
        (("--ips", "a,b", "--server-num", "1", "--worker-num", "1"), ("--ips", "--server-num", "--worker-num")),
        (("--run-mode", "ps", "--ips", "a,b"), ("--ips", "--run-mode ps")),
        (("--run-mode", "ps-heter", "--ctrl-port", "5"), ("--ctrl-port", "--run-mode ps-heter")),
        (("--run-mode", "collective", "--http-port", "5"), ("--run-mode collective", "--http-port")),
    ],
)
def test_flags_of_both_modes_are_refused_by_name(flags: tuple[str, ...], named: tuple[str, ...]) -> None:
    text = refusal(*flags)
    start = "Only one mode(Collective or Parameter-Server) can be selected at the same time, but "
    assert text.startswith(start)
    assert all(name in text for name in named)


def test_one_flag_or_two_of_a_mode_make_one_sentence() -> None:
    assert "but --ips is for collective jobs and --run-mode ps for jobs" in refusal("--run-mode", "ps", "--ips", "a,b")
    text = refusal("--run-mode", "ps", "--ips", "a,b", "--ctrl-port", "5")
    assert "but --ips and --ctrl-port are for collective jobs" in text


def test_a_variable_of_the_other_mode_is_refused_by_its_own_name() -> None:
    text = refusal("--server-num=1", "--worker-num=1", environ={"ELASTIC_IPS": "a,b"})
    assert text.startswith("Only one mode(")
    assert "ELASTIC_IPS" in text


def test_heterogeneous_workers_need_their_mode_and_the_mode_needs_them() -> None:
    text = refusal("--run-mode", "ps", "--server-num=1", "--worker-num=1", "--heter-worker-num=1")
    assert "--heter-worker-num" in text
    assert "ps-heter" in text
    assert "--heter-worker-num N" in refusal("--run-mode", "ps-heter", "--server-num=1", "--worker-num=1")


# What every job with parameter servers needs


@pytest.mark.parametrize("flags", [("--run-mode", "ps"), ("--http-port", "8000"), ("--heter-worker-num", "2")])
def test_without_numbers_and_lists_the_flags_to_use_are_named(flags: tuple[str, ...]) -> None:
    text = refusal(*flags)
    assert all(name in text for name in ("--server-num", "--worker-num", "--servers", "--workers"))


def test_a_job_without_a_server_or_without_a_worker_is_refused() -> None:
    assert refusal("--worker-num", "2").startswith("there is no parameter server: add --server-num N or --servers")
    assert refusal(SERVERS).startswith("there is no worker: add --worker-num N or --workers")
    assert refusal("--server-num=1", "--heter-worker-num=1").startswith("there is no worker")


@pytest.mark.parametrize(
    ("number", "flag"),
    [("--server-num", "--servers"), ("--worker-num", "--workers"), ("--heter-worker-num", "--heter")],
)
def test_a_number_that_is_not_that_of_its_list_is_refused_with_both(number: str, flag: str) -> None:
    lists = (SERVERS, "--workers=192.168.0.16,192.168.0.17", HETERS)
    text = refusal(*lists, number, "3")
    assert text.startswith(flag)
    assert "names 2" in text
    assert f"{number} is 3" in text
    assert read(*lists, number, "2").roles == read(*lists).roles


def test_the_number_of_workers_per_node_is_said_by_another_flag() -> None:
    text = refusal(SERVERS, WORKERS, "--nproc-per-node", "2")
    assert text.startswith("--nproc-per-node is for collective jobs")
    assert "--worker-num" in text
    assert read(SERVERS, WORKERS).slots == 1


def test_a_typing_error_does_not_start_thousands_of_processes() -> None:
    assert str(TASKS_PER_NODE_MAX) in refusal("--server-num", "1", "--worker-num", str(TASKS_PER_NODE_MAX))


@pytest.mark.parametrize(
    ("flag", "text", "says"),
    [
        ("--servers", "192.168.0.16", "write 192.168.0.16:6170"),
        ("--servers", "a:0", "a port is 1 to 65535"),
        ("--servers", "a:65536", "a port is 1 to 65535"),
        ("--servers", "a:1,b:1,a:1", "a:1 appears twice"),
        ("--servers", "fd00::16", "write [fd00::16]:6170"),
        ("--servers", "a:1,,b:1", "has no port"),
        ("--workers", "a,,b", "the host is missing"),
        ("--workers", "a:1,a:1", "a:1 appears twice"),
        ("--workers", "a:x", "is not host:port"),
        ("--workers", "a b", "neither a host name nor an address"),
        ("--heter-workers", "a:99999", "a port is 1 to 65535"),
        ("--http-port", "0", "must be 1 or more, not 0"),
    ],
)
def test_a_list_that_cannot_be_read_says_how_to_write_it(flag: str, text: str, says: str) -> None:
    found = refusal(f"{flag}={text}")
    assert found.startswith(f"{flag}: ")
    assert says in found


# One machine


def test_numbers_alone_are_one_node_with_every_process() -> None:
    config = read("--server-num", "2", "--worker-num", "2")
    assert config.roles == PsLayout(server_num=2, worker_num=2)
    assert config.np == Np(low=1, high=1, first=1)
    assert wanted_ports(config.roles, "127.0.0.1") == (0, 0, 0, 0)
    assert static_hosts(config) == ()


def test_one_machine_can_use_an_etcd_that_runs() -> None:
    assert read(*ETCD, "--server-num", "2", "--worker-num", "2").roles == PsLayout(server_num=2, worker_num=2)


def test_one_machine_has_heterogeneous_workers_before_workers() -> None:
    found = roles("--server-num=1", "--worker-num=3", "--heter-worker-num=2", "--http-port=8000")
    assert found == PsLayout(server_num=1, worker_num=3, heter_num=2, http_port=8000)
    assert len(wanted_ports(found, "h")) == 6


# Lists


def test_the_lists_of_the_documentation_make_two_nodes() -> None:
    config = read(SERVERS, WORKERS)
    assert config.roles is not None
    assert config.roles.servers == ("192.168.0.16:6170", "192.168.0.17:6170")
    assert len(config.roles.workers) == 4
    assert not config.roles.separate
    assert (config.roles.server_num, config.roles.worker_num) == (0, 0)
    assert config.np == Np(low=1, high=2, first=2)
    assert static_hosts(config) == ("192.168.0.16", "192.168.0.17")
    for host in static_hosts(config):
        assert wanted_ports(config.roles, host) == (6170, 6171, 6172)


def test_ports_are_in_the_order_of_seats_and_a_worker_may_have_any() -> None:
    found = roles(SERVERS, "--workers=192.168.0.17,192.168.0.17:7000,192.168.0.16,gpu0", HETERS)
    assert wanted_ports(found, "192.168.0.16") == (6170, 6172, 0)
    assert wanted_ports(found, "192.168.0.17") == (6170, 6172, 0, 7000)
    assert wanted_ports(found, "gpu0") == (0,)
    assert wanted_ports(found, "elsewhere") == ()
    assert listed_hosts(found) == ("192.168.0.16", "192.168.0.17", "gpu0")


def test_names_and_ipv6_addresses_can_be_listed() -> None:
    found = roles("--servers=ps0.paddlepaddle.com:6174,[fd00::17]:6174", "--workers=fd00::17, [fd00::18], [fd00::17]:7")
    assert listed_hosts(found) == ("ps0.paddlepaddle.com", "fd00::17", "fd00::18")
    assert wanted_ports(found, "fd00::17") == (6174, 0, 7)
    assert [parse_host_port(one) for one in found.workers] == [("fd00::17", 0), ("fd00::18", 0), ("fd00::17", 7)]


def test_where_the_lists_name_one_host_a_number_means_that_host() -> None:
    found = roles("--servers=127.0.0.1:6170,127.0.0.1:6171", "--worker-num=2", "--heter-worker-num=1")
    assert (found.workers, found.heters) == (("127.0.0.1",) * 2, ("127.0.0.1",))
    assert wanted_ports(found, "127.0.0.1") == (6170, 6171, 0, 0, 0)
    assert roles("--workers=h,h", "--server-num=1").servers == ("h",)


def test_where_they_name_several_a_number_does_not_say_where() -> None:
    text = refusal(SERVERS, "--worker-num", "2")
    assert text.startswith("--worker-num 2 does not say on which of 2 hosts")
    assert "--workers" in text
    assert "--np" in text


def test_two_processes_cannot_listen_on_one_port() -> None:
    text = refusal(SERVERS, WORKERS, HETERS)
    assert text.startswith("192.168.0.16:6172 is in --workers and in --heter-workers")
    assert refusal("--servers=h:1", "--workers=h:1").startswith("h:1 is in --servers and in --workers")
    text = refusal("--servers=h:1,i:2", "--workers=h", "--http-port=1")
    assert text.startswith("--http-port 1 is h:1 of --servers")
    assert roles("--servers=h:1,i:2", "--workers=h", "--http-port=2").http_port == 2


def test_np_beside_lists_is_the_number_of_their_hosts() -> None:
    assert read(SERVERS, WORKERS, "--np", "2:2").np == Np(low=2, high=2, first=2)
    text = refusal(SERVERS, WORKERS, "--np", "4")
    assert text.startswith("--np 4, but the lists name 2 hosts (192.168.0.16, 192.168.0.17)")


def test_nodes_on_one_machine_have_no_lists() -> None:
    assert "--server-num" in refusal("--local-nodes=2", SERVERS, WORKERS)
    assert "--server-num" in refusal("--local-nodes=3", "--servers=127.0.0.1:6170", "--worker-num=2")


# Servers apart


def test_with_np_servers_have_nodes_of_their_own() -> None:
    config = read(*ETCD, "--np", "2:8", "--server-num", "2", "--worker-num", "4", "--heter-worker-num", "1")
    assert config.roles == PsLayout(server_num=2, worker_num=4, heter_num=1, separate=True)
    assert config.np == Np(low=2, high=8, first=2)
    assert static_hosts(config) == ()


def test_a_node_that_may_become_a_server_or_bring_workers_holds_ports_for_either() -> None:
    assert wanted_ports(roles(*ETCD, "--np=4", "--server-num=2", "--worker-num=4"), "h") == (0, 0, 0, 0)
    assert wanted_ports(PsLayout(server_num=1, worker_num=0, separate=True), "h") == (0,)


def test_named_servers_hold_their_own_ports_and_other_nodes_those_of_workers() -> None:
    found = roles(*ETCD, "--np=4", "--servers=ps0:6170,ps1:6170,ps0:6171", "--worker-num=2", "--server-num=3")
    assert found == PsLayout(servers=("ps0:6170", "ps1:6170", "ps0:6171"), worker_num=2, separate=True)
    assert wanted_ports(found, "ps0") == (6170, 6171)
    assert wanted_ports(found, "ps1") == (6170,)
    assert wanted_ports(found, "gpu0") == (0, 0)


def test_local_nodes_that_are_not_servers_are_the_nodes_of_workers() -> None:
    config = read("--local-nodes=3", "--server-num=1", "--worker-num=2")
    assert config.np == Np(low=1, high=NP_UNLIMITED, first=2)
    assert config.roles == PsLayout(server_num=1, worker_num=2, separate=True)
    named = ("--elastic-server=h:1", "--job-id=j", "--local-nodes=3", "--server-num=1", "--worker-num=2")
    assert read(*named).np == Np(low=1, high=2, first=2)
    assert read("--local-nodes=3", "--np=1:4", "--server-num=1", "--worker-num=2").np == Np(low=1, high=4, first=1)


def test_local_nodes_without_one_for_workers_are_refused() -> None:
    text = refusal("--local-nodes=2", "--server-num=2", "--worker-num=2")
    assert text.startswith("--local-nodes 2 leaves no node for workers, after 2 servers")
    assert "--local-nodes 3" in text
    assert "--local-nodes 65" not in refusal("--local-nodes=2", "--server-num=64", "--worker-num=2"), "64 is the most"


def test_the_hosts_of_a_collective_job_are_its_ips() -> None:
    assert static_hosts(read("--ips", "b,a")) == ("b", "a")
    assert static_hosts(read()) == ()
