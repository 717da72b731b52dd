"""The host that serves etcd for a list of hosts: where it listens, and whether it can."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.config.host_list import first_host
from launcher.local.etcd_addresses import ServedAddresses, check_own, check_port, listening, old_release
from launcher.net import addresses

ELSEWHERE = "203.0.113.7"


def test_the_host_that_sorts_first_as_text_serves_for_every_order_of_the_list() -> None:
    assert first_host(["10.0.0.2", "10.0.0.10"]) == first_host(["10.0.0.10", "10.0.0.2"]) == "10.0.0.10"


def test_it_listens_on_its_own_address_and_for_people_on_this_machine_on_the_loopback_address() -> None:
    for own in addresses.candidates():
        loopback = "::1" if ":" in own else "127.0.0.1"
        assert listening(own, [own, ELSEWHERE]) == ServedAddresses((loopback, own), loopback)


def test_hosts_that_are_all_this_machine_are_served_on_the_first_one_alone() -> None:
    assert listening("127.0.0.2", ["127.0.0.2", "127.0.0.3"]) == ServedAddresses(("127.0.0.2",), "127.0.0.2")


def test_a_name_that_is_a_loopback_address_here_listens_everywhere_for_the_others() -> None:
    assert listening("localhost", ["localhost", ELSEWHERE]) == ServedAddresses(("0.0.0.0",), "127.0.0.1")


def test_an_address_in_front_of_this_machine_listens_everywhere() -> None:
    assert listening(ELSEWHERE, [ELSEWHERE, "203.0.113.8"]) == ServedAddresses(("0.0.0.0",), "127.0.0.1")


def test_every_address_is_listened_at_where_the_user_wants_that() -> None:
    assert listening("0.0.0.0", ["0.0.0.0"]) == ServedAddresses(("0.0.0.0",), "127.0.0.1")
    assert listening("::", ["::"]) == ServedAddresses(("0.0.0.0", "::"), "127.0.0.1")


def test_what_is_to_be_served_is_an_address_of_this_machine_or_all_of_them() -> None:
    for own in (*addresses.candidates(), "127.0.0.1", "127.0.0.2", "::1", "localhost", "0.0.0.0", "::"):
        check_own(own)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (ELSEWHERE, rf"^--serve {ELSEWHERE} is not an address of this host; use one of its own: "),
        (ELSEWHERE, rf"\(NAT\), use --serve 0\.0\.0\.0 --host {ELSEWHERE}$"),
        ("nosuch.invalid", r"^--serve nosuch\.invalid: this host cannot resolve that name"),
    ],
)
def test_another_address_is_refused_with_those_of_this_machine(host: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        check_own(host)
    assert all(own in str(refused.value) for own in addresses.candidates())


def test_a_port_in_use_is_refused_with_its_address_and_the_flag_that_chooses_another() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for hosts in (("127.0.0.1",), ("127.0.0.2", "127.0.0.1"), ("0.0.0.0",)):
            with pytest.raises(ConfigError, match=rf"^port {port} of .* is in use.*--serve-port"):
                check_port(ServedAddresses(hosts, hosts[0]), port)
    check_port(ServedAddresses(("127.0.0.1",), "127.0.0.1"), port)


def test_an_address_that_cannot_be_listened_at_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"^port 2000 of 203\.0\.113\.7 cannot be used \("):
        check_port(ServedAddresses((ELSEWHERE,), ELSEWHERE), 2000)


def test_the_warning_about_an_old_etcd_says_who_reaches_it_and_is_the_one_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides/security.md").read_text()
    assert old_release("3.5.1", closed=True) in page
    assert "3.5.1, a release with known vulnerabilities, open to every client" in old_release("3.5.1", closed=False)
    assert "runs an etcd of an unknown release, open to" in old_release("", closed=True)
