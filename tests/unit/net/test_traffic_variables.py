"""Proxies in the environment: what workers get, and what people are told."""

from __future__ import annotations

import pytest

from launcher.net.traffic_variables import LIST_BYTES_MAX, proxies, proxy_exceptions, proxy_warning
from tests.support.worker_environments import environment, generation


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
def test_each_variable_that_names_a_proxy_is_seen_and_told_with_the_unset_that_helps(name: str) -> None:
    environ = {name: "http://user:secret@proxy:3128", "no_proxy": "a"}
    assert proxies(environ) == (name,)
    assert proxy_warning(environ).startswith(f"{name} names a proxy: ")
    assert proxy_warning(environ).endswith(f": unset {name}")
    assert "secret" not in proxy_warning(environ)


def test_without_a_proxy_nothing_is_said_and_nothing_is_changed() -> None:
    environ = {"http_proxy": "", "https_proxy": " ", "no_proxy": "a", "proxy": "x"}
    assert proxy_warning(environ) == ""
    assert proxy_exceptions(environ, ["10.0.0.1"]) == {}


def test_several_variables_are_told_in_one_line() -> None:
    said = proxy_warning({"http_proxy": "p", "HTTPS_PROXY": "p", "all_proxy": "p"})
    assert said.startswith("http_proxy, HTTPS_PROXY and all_proxy name a proxy")
    assert said.endswith("unset http_proxy HTTPS_PROXY all_proxy")


def test_what_the_user_excepted_stays_and_comes_first_in_both_spellings() -> None:
    environ = {"http_proxy": "p", "no_proxy": "a.example, b", "NO_PROXY": "c,b"}
    whole = "a.example,b,c,localhost,127.0.0.1,::1,10.0.0.1"
    assert proxy_exceptions(environ, ["10.0.0.1", "b", "10.0.0.1"]) == {"no_proxy": whole, "NO_PROXY": whole}


def test_a_list_that_no_variable_can_hold_is_left_as_it_was() -> None:
    assert proxy_exceptions({"http_proxy": "p"}, [f"host-{number}" for number in range(LIST_BYTES_MAX // 6)]) == {}


def test_a_worker_reaches_its_peers_and_etcd_without_a_proxy_and_keeps_it_for_the_rest() -> None:
    base = {"https_proxy": "http://proxy:3128", "NO_PROXY": "internal"}
    made = environment(generation(), base=base, servers=("etcd-0:2379", "[fd00::1]:2379"))
    assert made["https_proxy"] == "http://proxy:3128"
    assert made["no_proxy"] == made["NO_PROXY"]
    assert made["no_proxy"] == "internal,localhost,127.0.0.1,::1,10.0.0.0,10.0.0.1,etcd-0,fd00::1"


def test_a_worker_without_a_proxy_has_no_exceptions_of_ours() -> None:
    assert not {"no_proxy", "NO_PROXY"} & set(environment(generation(), servers=("etcd-0:2379",)))
