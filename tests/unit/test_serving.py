"""The host that serves etcd for a list of hosts: where it listens, and whether it can."""

from __future__ import annotations

import socket

import pytest

from elastic.errors import ConfigError
from launcher import addresses
from launcher.serving import Listening, check_port, first_host, listening

ELSEWHERE = "203.0.113.7"


def test_the_host_that_sorts_first_as_text_serves_for_every_order_of_the_list() -> None:
    assert first_host(["10.0.0.2", "10.0.0.10"]) == first_host(["10.0.0.10", "10.0.0.2"]) == "10.0.0.10"


def test_it_listens_on_its_own_address_and_for_people_on_this_machine_on_the_loopback_address() -> None:
    for own in addresses.candidates():
        loopback = "::1" if ":" in own else "127.0.0.1"
        assert listening(own, [own, ELSEWHERE]) == Listening((loopback, own), loopback)


def test_hosts_that_are_all_this_machine_are_served_on_the_first_one_alone() -> None:
    assert listening("127.0.0.2", ["127.0.0.2", "127.0.0.3"]) == Listening(("127.0.0.2",), "127.0.0.2")


def test_a_name_that_is_a_loopback_address_here_listens_everywhere_for_the_others() -> None:
    assert listening("localhost", ["localhost", ELSEWHERE]) == Listening(("0.0.0.0",), "127.0.0.1")


def test_an_address_in_front_of_this_machine_listens_everywhere() -> None:
    assert listening(ELSEWHERE, [ELSEWHERE, "203.0.113.8"]) == Listening(("0.0.0.0",), "127.0.0.1")


def test_a_port_in_use_is_refused_with_its_address_and_the_flag_that_chooses_another() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for hosts in (("127.0.0.1",), ("127.0.0.2", "127.0.0.1"), ("0.0.0.0",)):
            with pytest.raises(ConfigError, match=rf"^port {port} of .* is in use.*--serve_port"):
                check_port(Listening(hosts, hosts[0]), port)
    check_port(Listening(("127.0.0.1",), "127.0.0.1"), port)


def test_an_address_that_cannot_be_listened_at_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"^port 2000 of 203\.0\.113\.7 cannot be had \("):
        check_port(Listening((ELSEWHERE,), ELSEWHERE), 2000)
