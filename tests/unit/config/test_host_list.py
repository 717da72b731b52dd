"""How a node finds itself in a list of hosts that is the same everywhere."""

from __future__ import annotations

import socket

import pytest

from elastic.errors import ConfigError
from launcher.config.host_list import own_entry, shown
from launcher.net import addresses

ELSEWHERE = ("203.0.113.7", "2001:db8::7")
"""Addresses for documentation: no machine has them."""


def found(hosts: tuple[str, ...], host: str = "") -> str:
    return own_entry(hosts, host, flag="--ips", source="--host")


def refusal(hosts: tuple[str, ...], host: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        found(hosts, host)
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 2
    return text


def test_a_hint_that_fits_no_entry_gives_way_to_the_addresses_of_this_machine() -> None:
    def hinted(hosts: tuple[str, ...], host: str) -> str:
        return own_entry(hosts, host, flag="--servers", source="POD_IP", is_hint=True)

    assert hinted((*ELSEWHERE, "localhost"), "203.0.113.9") == "localhost"
    assert hinted((*ELSEWHERE, "localhost"), ELSEWHERE[0]) == ELSEWHERE[0]
    with pytest.raises(ConfigError, match=r"^POD_IP 203\.0\.113\.9 is not in --servers "):
        hinted(ELSEWHERE, "203.0.113.9")


def test_where_no_entry_is_required_a_node_that_fits_none_keeps_its_host() -> None:
    for host in ("", "203.0.113.9"):
        assert own_entry(ELSEWHERE, host, flag="--servers", source="--host", required=False) == host
    assert own_entry((*ELSEWHERE, "localhost"), "", flag="--servers", source="--host", required=False) == "localhost"


def test_without_a_list_the_host_is_as_it_was() -> None:
    assert own_entry((), "h", flag="--servers", source="--host") == "h"


def test_without_a_name_it_is_the_entry_with_an_address_of_this_machine() -> None:
    for own in addresses.candidates():
        assert found((ELSEWHERE[0], own, ELSEWHERE[1])) == own
    assert found((*ELSEWHERE, "127.0.0.2")) == "127.0.0.2"
    assert found((*ELSEWHERE, "::1")) == "::1"


def test_an_entry_that_is_a_name_counts_with_its_address_and_stays_as_it_is_written() -> None:
    assert found((*ELSEWHERE, "LocalHost")) == "LocalHost"


def test_a_name_that_cannot_be_resolved_is_some_other_node() -> None:
    assert found(("node-b.invalid", "localhost")) == "localhost"


def test_a_name_that_begins_with_this_machines_name_is_this_node_although_it_cannot_be_resolved() -> None:
    own = f"{socket.gethostname().partition('.')[0].upper()}.job.invalid"
    assert found(("node-b.invalid", own)) == own


def test_the_given_name_is_taken_as_it_is_in_the_list_even_where_it_cannot_be_resolved() -> None:
    assert found((*ELSEWHERE, "node-b.invalid"), "node-b.invalid") == "node-b.invalid"
    assert found(ELSEWHERE, ELSEWHERE[0]) == ELSEWHERE[0]


def test_the_given_name_may_be_written_in_another_way_and_the_entry_is_as_the_list_writes_it() -> None:
    assert found(("Node-B.invalid", *ELSEWHERE), "node-b.INVALID") == "Node-B.invalid"
    assert found(("127.0.0.1", *ELSEWHERE), "localhost") == "127.0.0.1"
    assert found(("2001:DB8:0::7", "203.0.113.7"), "2001:db8::7") == "2001:DB8:0::7"


def test_a_list_without_this_machine_is_refused_with_its_addresses_and_the_list() -> None:
    text = refusal(ELSEWHERE)
    assert ",".join(ELSEWHERE) in text
    for own in addresses.candidates():
        assert own in text
    assert "--host" in text


def test_names_that_cannot_be_resolved_are_told_when_no_entry_fits() -> None:
    assert "(node-b.invalid cannot be resolved)" in refusal(("node-b.invalid", *ELSEWHERE))


def test_a_given_name_that_is_not_in_the_list_is_refused_with_the_list_and_this_machines_addresses() -> None:
    text = refusal(ELSEWHERE, "127.0.0.1")
    assert text.startswith(f"--host 127.0.0.1 is not in --ips {','.join(ELSEWHERE)}")
    for own in addresses.candidates():
        assert own in text


def test_several_entries_that_are_this_machine_are_refused_and_host_is_asked_for() -> None:
    text = refusal(("127.0.0.1", *ELSEWHERE, "127.0.0.2"))
    assert text.startswith("127.0.0.1 and 127.0.0.2 of --ips ")
    assert "--host" in text


def test_a_given_name_that_fits_several_entries_is_to_be_written_as_one_of_them() -> None:
    assert "write it as in the list" in refusal(("127.0.0.1", "LOCALHOST"), "localhost")


def test_a_long_list_is_shortened_in_a_message() -> None:
    hosts = [f"h{number}" for number in range(20)]
    assert shown(hosts).endswith("h15 and 4 more")
    assert shown(hosts[:16]).endswith("h15")
