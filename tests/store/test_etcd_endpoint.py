"""How addresses and options are read, and which server is asked."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from elastic.store.etcd import EtcdAddress, EtcdOptions, EtcdStore
from elastic.store.etcd.endpoint import EndpointRotation, EtcdEndpoint
from elastic.store.tls import Certificates


@pytest.mark.parametrize(
    ("text", "target", "tls"),
    [
        ("10.0.0.5:2379", "10.0.0.5:2379", False),
        ("etcd-0.etcd.svc:2379", "etcd-0.etcd.svc:2379", False),
        ("http://host:2379", "host:2379", False),
        ("http://host:2379/", "host:2379", False),
        ("https://host:2379", "host:2379", True),
        ("[::1]:2379", "[::1]:2379", False),
        ("http://[fe80::1%eth0]:2379", "[fe80::1%eth0]:2379", False),
    ],
)
def test_an_address_keeps_its_host_and_port_as_written(text: str, target: str, tls: bool) -> None:
    assert EtcdAddress.parse(text) == EtcdAddress(target, tls, plain=text.startswith("http://"))


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":2379", "host:0", "host:65536", "host:port", "::1:2379", "ftp://host:1", "a:1,b:2", "a b:1"],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an etcd endpoint"):
        EtcdAddress.parse(text)


def test_options_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no key: add --etcd-key"):
        EtcdOptions(certificates=Certificates(cert="a.pem"))
    with pytest.raises(ConfigError, match="without a user"):
        EtcdOptions(password="secret")
    with pytest.raises(ConfigError, match="cannot be read"):
        EtcdOptions(certificates=Certificates(ca=str(tmp_path / "none.pem")))
    with pytest.raises(ConfigError, match="at least one"):
        EtcdStore([])


def test_no_text_about_options_has_the_password_or_the_secret() -> None:
    assert "pw-1" not in repr(EtcdOptions(user="u", password="pw-1", secret="pw-1"))


def test_many_clients_start_at_all_servers() -> None:
    endpoints = [f"host{number}:2379" for number in range(3)]
    stores = [EtcdStore(endpoints, random_source=random.Random(seed)) for seed in range(30)]
    assert {str(store._servers.rotation.current) for store in stores} == set(endpoints)


def test_a_server_that_is_named_twice_is_one() -> None:
    assert len(EtcdStore(["a:1", "http://a:1", "b:1"])._servers.rotation.endpoints) == 2


def test_only_the_current_server_can_be_left_so_that_many_failures_move_once() -> None:
    options = EtcdOptions()
    rotation = EndpointRotation(
        [EtcdEndpoint(EtcdAddress(f"host:{port}", False), options) for port in (1, 2, 3)], random.Random(0)
    )
    first, second = rotation.current_and_next()
    rotation.leave(first)
    rotation.leave(first)
    assert rotation.current is second
    alone = EndpointRotation([first], random.Random(0))
    alone.leave(first)
    assert alone.current_and_next() == (first,)
