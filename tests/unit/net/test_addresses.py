"""Endpoints as text, and the address that a node tells the others."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.errors import ConfigError, StoreUnavailable
from launcher.net import addresses
from launcher.net.addresses import (
    _route,
    advertised,
    candidates,
    interface,
    interface_among,
    interface_now,
    is_loopback,
    known_by,
    nic_address,
    only_here,
)
from launcher.net.endpoints import join_host_port, parse_endpoint

ROOT = Path(__file__).parents[3]

REMOTE = ("203.0.113.77:2379",)
"""An address of the documentation's network: a route leads there, nobody answers."""


@pytest.fixture
def a_route(monkeypatch: pytest.MonkeyPatch) -> str:
    """The local end of the route to `REMOTE`, on a machine that has no network, too."""
    monkeypatch.setattr(
        "launcher.net.addresses._route", lambda host, port: "10.9.8.7" if host == "203.0.113.77" else None
    )
    return "10.9.8.7"


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("h:1", ("h", 1)),
        ("etcd-0.etcd.ns.svc.cluster.local:2379", ("etcd-0.etcd.ns.svc.cluster.local", 2379)),
        ("10.0.0.5:65535", ("10.0.0.5", 65535)),
        ("[::1]:2379", ("::1", 2379)),
        ("[fd00::1:2]:1", ("fd00::1:2", 1)),
    ],
)
def test_an_endpoint_is_a_host_and_a_port(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text) == endpoint
    assert join_host_port(*endpoint) == text


@pytest.mark.parametrize(
    "text",
    ["", "h", "h:", ":1", "::1", "::1:2379", "[::1]", "[h]:1", "h:0", "h:70000", "h:+1", "h: 1", "a b:1", "a:b:1"],
)
def test_anything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|host|brackets|neither"):
        parse_endpoint(text)


@given(st.ip_addresses().map(str), st.integers(1, 65535))
def test_every_address_can_be_written_and_read_back(host: str, port: int) -> None:
    assert parse_endpoint(join_host_port(host, port)) == (host, port)


@given(st.text())
def test_no_text_crashes_the_reader_of_endpoints(text: str) -> None:
    try:
        host, port = parse_endpoint(text)
    except ValueError:
        return
    assert host
    assert 1 <= port <= 65535


def test_the_named_host_goes_before_the_pods_ip() -> None:
    assert advertised("10.0.0.1", {"POD_IP": "10.0.0.2"}, REMOTE) == "10.0.0.1"
    assert advertised("", {"POD_IP": "10.0.0.2"}, REMOTE) == "10.0.0.2"
    assert advertised("[fd00::1]", {}, REMOTE) == "fd00::1"


def test_without_a_name_it_is_the_local_end_of_the_route_to_the_store(a_route: str) -> None:
    assert advertised("", {}, REMOTE) == a_route
    assert advertised("", {}, ("127.0.0.1:2379", *REMOTE)) == a_route


def test_a_store_on_the_loopback_interface_means_that_all_nodes_are_here() -> None:
    assert advertised("", {}, ("127.0.0.1:2379", "localhost:2379")) == "127.0.0.1"
    assert advertised("", {}, ("[::1]:2379",)) == "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_a_loopback_address_with_a_remote_store_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="--host") as caught:
        advertised(host, {}, REMOTE)
    for candidate in candidates():
        assert candidate in str(caught.value)


def test_a_loopback_address_is_fine_when_the_store_is_on_this_machine() -> None:
    assert advertised("127.0.0.1", {}, ("127.0.0.1:2379",)) == "127.0.0.1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "224.0.0.1"])
def test_an_address_that_is_not_one_machines_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="a single host"):
        advertised(host, {}, ("127.0.0.1:2379",))


def test_a_bad_pod_ip_is_named() -> None:
    with pytest.raises(ConfigError, match="POD_IP"):
        advertised("", {"POD_IP": "127.0.0.1"}, REMOTE)
    with pytest.raises(ConfigError, match="POD_IP"):
        advertised("", {"POD_IP": "not an address"}, REMOTE)


def test_a_store_whose_name_has_no_address_is_a_matter_of_time_and_named_as_such() -> None:
    with pytest.raises(StoreUnavailable, match=r"cannot resolve etcd\.invalid; check the spelling, DNS"):
        advertised("", {}, ("etcd.invalid:2379",))


def test_a_name_that_does_not_resolve_is_not_loopback() -> None:
    assert not is_loopback("etcd.invalid")
    assert is_loopback("localhost")


def test_every_address_of_this_machine_has_its_interface() -> None:
    loopback = next(
        name for name, owned in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in owned)
    )
    assert interface("127.0.0.1") == loopback
    assert interface("localhost") == loopback
    for name, owned in psutil.net_if_addrs().items():
        for address in owned:
            if address.family == socket.AF_INET:
                assert interface(address.address) == name.partition(":")[0]


def test_an_address_of_another_machine_has_no_interface_here() -> None:
    assert interface("203.0.113.77") is None


def test_the_way_to_other_hosts_tells_the_interface_of_a_node_that_calls_itself_a_loopback_address() -> None:
    alone = interface("127.0.0.1")
    assert interface_among("localhost", ()) == interface_among("localhost", ("127.0.1.1", "etcd.invalid")) == alone
    assert interface_among("127.0.1.1", ("localhost",)) is None
    for peer in candidates():
        assert interface_among("localhost", ("localhost", peer)) == interface(peer)
        assert interface_among("127.0.1.1", ("127.0.1.1", peer)) == interface(peer)
        assert interface_among("203.0.113.77", (peer,)) == interface(peer), "an address in front of this machine"


def test_a_host_is_only_here_when_all_hosts_that_are_with_it_are() -> None:
    assert only_here("localhost", ())
    assert only_here("127.0.0.2", ("127.0.0.2", "localhost"))
    assert not only_here("127.0.1.1", ("127.0.1.1", "203.0.113.77"))
    assert not only_here("203.0.113.77", ())


def test_every_address_of_this_machine_is_its_own() -> None:
    assert {str(address) for address in addresses.own_addresses()} >= {"127.0.0.1", *candidates()}


def test_no_address_is_found_by_looking_a_name_up_backwards() -> None:
    """On many machines that gives 127.0.1.1, which no other machine can use."""
    backwards = re.compile(r"\b(gethostbyaddr|gethostbyname(_ex)?|getfqdn|getnameinfo)\b")
    sources = [path for package in ("launcher", "elastic") for path in (ROOT / package).rglob("*.py")]
    assert [path.name for path in sources if backwards.search(path.read_text())] == []


def test_the_source_of_a_bad_address_is_named() -> None:
    for environ, source in (
        ({}, "--host"),
        ({"POD_IP": "127.0.0.1"}, "POD_IP"),
        ({"ELASTIC_HOST": "127.0.0.1"}, "ELASTIC_HOST"),
    ):
        with pytest.raises(ConfigError, match=f"^{source} "):
            advertised("127.0.0.1", environ, REMOTE)


def test_the_kernel_is_asked_for_the_route() -> None:
    assert _route("127.0.0.1", 9) == "127.0.0.1"
    for mine in candidates():  # The way to one's own address begins at that address.
        assert advertised("", {}, (join_host_port(mine, 2379),)) == mine


# An interface that is named.

CARDS = {
    "lo": ("127.0.0.1", "::1"),
    "eth0": ("10.0.0.7", "fe80::1%eth0", "fd00::7"),
    "ib0": ("fe80::2%ib0",),
    "net1": ("fd00::9",),
}


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with these network interfaces."""
    owned = made(CARDS)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: owned)


def made(gpus: Mapping[str, Sequence[str]]) -> dict[str, list[SimpleNamespace]]:
    """These interfaces with their addresses, as psutil tells them."""
    return {
        name: [SimpleNamespace(family=socket.AF_INET6 if ":" in text else socket.AF_INET, address=text) for text in one]
        for name, one in gpus.items()
    }


@pytest.mark.usefixtures("interfaces")
def test_the_address_of_an_interface_is_its_ipv4_one_unless_the_servers_speak_ipv6() -> None:
    assert nic_address("eth0") == "10.0.0.7"
    assert nic_address("eth0", ["[fd00::1]:2379"]) == "fd00::7"
    assert nic_address("eth0", ["[fd00::1]:2379", "h:2379"]) == "10.0.0.7"
    assert nic_address("net1", REMOTE) == "fd00::9"


def test_an_interface_that_came_back_under_another_name_is_found_by_its_addresses(
    interfaces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, gpus = known_by("eth0"), dict(psutil.net_if_addrs())
    assert interface_now("eth0", known) == "eth0"
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth1": gpus["eth0"]})
    assert interface_now("eth0", known) == "eth1"
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": gpus["ib0"], "eth1": gpus["eth0"]})
    assert interface_now("eth0", known) == "eth1", "another card has its name"
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"lo": gpus["lo"]})
    assert interface_now("eth0", known) == "eth0", "nobody has its addresses"
    assert interface_now(None, known_by(None)) is None


def test_an_interface_is_not_taken_for_another_one_on_the_same_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """A VLAN, or a bridge, has the MAC of its card, and with it the same address of the link."""
    gpus = made({"eth0": ("192.168.1.5", "fe80::a%eth0"), "eth0.100": ("10.0.0.5", "fe80::a%eth0.100")})
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: gpus)
    known = known_by("eth0.100")
    assert interface_now("eth0.100", known) == "eth0.100"
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": gpus["eth0"], "eth2.100": gpus["eth0.100"]})
    assert interface_now("eth0.100", known) == "eth2.100"
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0": gpus["eth0"]})
    assert interface_now("eth0.100", known) == "eth0.100", "what is gone is not the card below"


def test_an_interface_keeps_its_name_where_another_one_has_its_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = made({"lo": ("127.0.0.1", "10.0.0.5"), "eth0": ("10.0.0.5", "10.0.0.6")})
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: gpus)
    assert interface_now("eth0", known_by("eth0")) == "eth0"


def test_an_interface_with_nothing_but_a_link_local_ipv4_address_is_found_by_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = made({"usb0": ("169.254.3.1", "fe80::a%usb0"), "eth0": ("10.0.0.5", "169.254.3.2", "fe80::b%eth0")})
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: gpus)
    assert {str(one) for one in known_by("usb0")} == {"169.254.3.1"}
    assert {str(one) for one in known_by("eth0")} == {"10.0.0.5"}


def test_a_second_address_with_a_label_is_one_of_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = made({"eth0": ("192.168.1.5",), "eth0:1": ("10.0.0.5",)})
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: gpus)
    assert {str(one) for one in known_by(interface("10.0.0.5"))} == {"192.168.1.5", "10.0.0.5"}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"eth0:1": gpus["eth0:1"]})
    assert interface_now("eth0", known_by("eth0")) == "eth0"


@pytest.mark.usefixtures("interfaces")
def test_an_interface_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ConfigError, match=r"no such interface on this host; use one of lo \(127.*\), eth0 \(10.0.0.7\), ib0"
    ):
        nic_address("eth9")


@pytest.mark.usefixtures("interfaces")
def test_an_interface_without_an_address_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(ConfigError, match=r"--nic ib0 has no address.*lo \(127.0.0.1\), eth0 \(10.0.0.7\), net1"):
        nic_address("ib0")


@pytest.mark.usefixtures("interfaces", "a_route")
def test_the_interface_gives_the_address_unless_a_host_is_named() -> None:
    assert advertised("", {}, REMOTE) == "10.9.8.7"
    assert advertised("", {}, REMOTE, "eth0") == "10.0.0.7"
    assert advertised("203.0.113.5", {}, REMOTE, "eth0") == "203.0.113.5"
    assert advertised("", {"POD_IP": "10.1.1.1"}, REMOTE, "eth0") == "10.1.1.1"


@pytest.mark.usefixtures("interfaces")
def test_the_loopback_is_no_interface_for_a_store_elsewhere() -> None:
    with pytest.raises(ConfigError, match=r"--nic lo: 127.0.0.1 is reachable only from this host"):
        advertised("", {}, REMOTE, "lo")
