"""`--ips` on the command line: what it makes of np, of the job's name and of the server, and what does not fit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.core.keys import JOB_ID
from elastic.core.model import Np
from elastic.errors import ConfigError
from launcher.config import host_list
from launcher.config.machine_checks import check
from launcher.config.parse import parse
from launcher.local.commands import node_argv
from tests.support.config_refusal import refusal

TWO = ("--ips", "10.0.0.2,10.0.0.10")


# --- the list -----------------------------------------------------------------------------------------------------


def test_the_list_has_names_and_addresses_of_both_kinds_as_they_are_written_and_in_their_order() -> None:
    config = parse(["--ips", "job-20.Example.com, 10.0.0.1,[fd00::2],fd00::1,node_3", "t.py"], {})
    assert config.ips == ("job-20.Example.com", "10.0.0.1", "fd00::2", "fd00::1", "node_3")


@pytest.mark.parametrize("text", ["a,b,a", "a,A", "fd00::1,FD00:0::1", "10.0.0.1,[10.0.0.1]"])
def test_a_host_that_is_there_twice_is_refused_however_it_is_written(text: str) -> None:
    said = refusal("--ips", text, "t.py")
    assert said.startswith("--ips: ")
    assert "appears twice" in said


@pytest.mark.parametrize("text", ["", "a,,b", "a b", "10.0.0.1:2379", "http://a"])
def test_what_is_no_host_is_refused(text: str) -> None:
    assert refusal("--ips", text, "t.py").startswith("--ips: ")


# --- the wait for the host that serves ----------------------------------------------------------------------------


def test_hosts_that_are_started_one_by_one_have_ten_minutes_to_come() -> None:
    assert parse([*TWO, "t.py"], {}).connect_timeout_s == 600
    assert parse([*TWO, "--connect-timeout", "60", "t.py"], {}).connect_timeout_s == 60
    assert parse([*TWO, "t.py"], {"ELASTIC_CONNECT_TIMEOUT": "5"}).connect_timeout_s == 5
    assert parse([*TWO, "--elastic-server", "10.0.0.5:2379", "--job-id", "j", "t.py"], {}).connect_timeout_s == 60


# --- np -----------------------------------------------------------------------------------------------------------


def test_without_np_all_hosts_of_the_list_are_awaited() -> None:
    assert parse([*TWO, "t.py"], {}).np == Np(low=1, high=2, first=2)
    assert parse([*TWO, "--np", "1:2", "t.py"], {}).np == Np(low=1, high=2, first=1)


@pytest.mark.parametrize("np", ["3", "1:3"])
def test_an_np_that_exceeds_the_list_is_refused_with_the_list(np: str) -> None:
    text = refusal(*TWO, "--np", np, "t.py")
    assert text.startswith(f"--np {np} asks for 3 nodes, and --ips names 2: 10.0.0.2,10.0.0.10")


def test_several_nodes_of_one_machine_and_a_list_of_hosts_exclude_each_other() -> None:
    assert "--local-nodes 2" in refusal(*TWO, "--local-nodes", "2", "t.py")
    assert "--local-nodes 2" in refusal("--ips", "localhost", "--np", "1", "--local-nodes", "2", "t.py")


# --- without a server ---------------------------------------------------------------------------------------------


def test_without_a_server_the_host_that_sorts_first_serves_at_the_serve_port() -> None:
    config = parse([*TWO, "t.py"], {})
    assert (config.served_by, config.servers, config.local_nodes) == ("10.0.0.10", ("10.0.0.10:12379",), 0)
    config = parse(["--ips", "fd00::2,fd00::1", "--serve-port", "2000", "t.py"], {})
    assert (config.served_by, config.servers) == ("fd00::1", ("[fd00::1]:2000",))


def test_the_jobs_name_is_made_of_the_hosts_whatever_their_order() -> None:
    first, second = (parse(["--ips", ips, "t.py"], {}) for ips in ("b,a", "a,b"))
    assert first.job_id == second.job_id == "t_a_b"
    assert parse(["--ips", "a,b,c", "t.py"], {}).job_id != first.job_id
    assert parse(["--ips", "a,b", "other.py"], {}).job_id != first.job_id, "another training of the same hosts"
    assert parse(["--ips", "a,b", "/elsewhere/t.py"], {}).job_id == first.job_id
    assert parse(["--ips", "a,b", "--job-id", "mine", "t.py"], {}).job_id == "mine"


@pytest.mark.parametrize("hosts", [("fd00::1", "fd00::2"), tuple(f"node-{n}.example.com" for n in range(500))])
def test_any_list_makes_a_name_that_a_job_may_have(hosts: tuple[str, ...]) -> None:
    assert JOB_ID.fullmatch(host_list.job_name(hosts, "train.py"))


def test_a_long_list_with_another_host_makes_another_name() -> None:
    many = [f"node-{number}.example.com" for number in range(500)]
    assert host_list.job_name(many, "t.py") != host_list.job_name([*many[:-1], "another"], "t.py")


def test_a_list_of_one_host_is_a_job_of_this_machine_alone() -> None:
    config = parse(["--ips", "localhost", "t.py"], {})
    assert (config.served_by, config.servers, config.local_nodes, config.np.high) == ("", (), 1, 1)


def test_with_a_server_the_list_names_neither_the_server_nor_the_job() -> None:
    config = parse([*TWO, "--elastic-server", "h:1", "--job-id", "j", "t.py"], {})
    assert (config.served_by, config.servers, config.job_id) == ("", ("h:1",), "j")
    assert "--job-id" in refusal(*TWO, "--elastic-server", "h:1", "t.py")


# --- on this machine ----------------------------------------------------------------------------------------------

LOCAL = ("--ips", "127.0.0.2,127.0.0.1")


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("")
    return str(tmp_path / "train.py")


def test_the_first_host_serves_and_hands_everything_on_to_its_own_node(script: str) -> None:
    config = check(parse([*LOCAL, "--host", "127.0.0.1", "--serve-port", "2000", script, "--lr", "1"], {}), {})
    assert (config.serves, config.local_nodes, config.host) == (True, 1, "127.0.0.1")
    child = parse(node_argv(config, "127.0.0.1:2000"), {"POD_IP": "127.0.0.9"})
    assert (child.ips, child.host, child.np, child.job_id) == (config.ips, "127.0.0.1", config.np, config.job_id)
    assert (child.servers, child.served_by, child.local_nodes) == (("127.0.0.1:2000",), "", 0)
    assert child.script_args == ("--lr", "1")


def test_every_other_host_is_an_ordinary_node(script: str) -> None:
    config = check(parse([*LOCAL, script], {"POD_IP": "127.0.0.2"}), {"POD_IP": "127.0.0.2"})
    assert (config.serves, config.local_nodes, config.host) == (False, 0, "127.0.0.2")


def test_the_only_host_of_a_list_stays_as_it_is_written(script: str) -> None:
    config = check(parse(["--ips", "LocalHost", script], {}), {})
    assert (config.host, config.serves) == ("LocalHost", False)
    child = parse(node_argv(config, "127.0.0.1:2000"), {})
    assert (child.ips, child.host) == (("LocalHost",), "LocalHost")


def test_a_pod_ip_that_is_not_in_the_list_is_refused_by_name(script: str) -> None:
    environ = {"POD_IP": "127.0.0.9"}
    with pytest.raises(ConfigError, match=r"^POD_IP 127\.0\.0\.9 is not in --ips "):
        check(parse([*LOCAL, script], environ), environ)


def test_a_loopback_address_in_a_list_with_hosts_elsewhere_is_refused(script: str) -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1 is reachable only from this host"):
        check(parse(["--ips", "127.0.0.1,10.0.0.1", script], {}), {})


def test_a_name_that_is_a_loopback_address_on_its_own_machine_is_taken(script: str) -> None:
    """As Debian writes it into /etc/hosts; the others know the name by a real address."""
    assert check(parse(["--ips", "localhost,203.0.113.7", script], {}), {}).host == "localhost"
