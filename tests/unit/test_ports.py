"""Ports that are held: torch can listen on them, nobody else gets them."""

from __future__ import annotations

import socket
import subprocess
from datetime import timedelta

import pytest

from elastic.errors import ConfigError
from launcher.ports import hold


def listening(port: int, host: str = "0.0.0.0", *, reuse: bool) -> socket.socket:
    """A listening socket as a server makes it; OSError if the port is taken."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        made.bind((host, port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def test_as_many_different_ports_are_held_as_were_asked_for() -> None:
    with hold("", 20) as held:
        assert len(set(held.ports)) == 20
        assert all(port > 0 for port in held.ports)
    with hold("127.0.0.1", 0) as held:
        assert held.ports == ()


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_torchs_store_listens_on_a_held_port_and_is_reached_there(host: str) -> None:
    from torch._C._distributed_c10d import TCPStore

    with hold(host, 1) as held:
        (port,) = held.ports
        for _ in range(2):  # A second store on the same port, after the first is gone, as in a restart.
            server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(0, 20))
            client = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(0, 20))
            server.set("key", "value")
            assert client.get("key") == b"value"
            del client, server


def test_torchs_older_store_listens_on_a_held_port_too() -> None:
    from torch._C._distributed_c10d import TCPStore

    with hold("", 1) as held:
        timeout = timedelta(0, 20)
        server = TCPStore(
            "127.0.0.1", held.ports[0], is_master=True, wait_for_workers=False, timeout=timeout, use_libuv=False
        )
        assert server.port == held.ports[0]


@pytest.mark.parametrize(("first", "second"), [("", ""), ("127.0.0.1", "127.0.0.1"), ("", "127.0.0.1"), ("", "::1")])
def test_a_held_port_cannot_be_held_again(first: str, second: str) -> None:
    with hold(first, 1) as held, pytest.raises(ConfigError, match="need 1 free port"):
        hold(second, 1, within=(held.ports[0], held.ports[0]))


def test_a_port_on_which_a_store_listens_cannot_be_taken() -> None:
    with hold("", 1) as held, listening(held.ports[0], reuse=True):
        with pytest.raises(OSError, match="in use"):
            listening(held.ports[0], reuse=True)
        with pytest.raises(ConfigError):
            hold("", 1, within=(held.ports[0], held.ports[0]))


def test_the_kernel_gives_a_held_port_to_nobody() -> None:
    with hold("", 1) as held:
        for _ in range(200):
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] != held.ports[0]


def test_a_port_is_free_again_after_close() -> None:
    held = hold("", 1)
    held.close()
    held.close()
    with hold("", 1, within=(held.ports[0], held.ports[0])) as again:
        assert again.ports == held.ports


def test_too_few_free_ports_say_how_many_there_were_and_hold_none() -> None:
    with hold("", 1) as taken:
        first = taken.ports[0] - 1
        with pytest.raises(ConfigError, match=f"need 2 free ports in {first}:{first + 1}") as caught:
            hold("", 2, within=(first, first + 1))
        assert "found" in str(caught.value)
    with hold("", 2, within=(first, first + 1)) as held:
        assert held.ports == (first, first + 1)


def test_a_host_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.77"):
        hold("203.0.113.77", 1)


def test_a_process_that_we_start_does_not_inherit_the_ports() -> None:
    held = hold("", 3)
    # It lives until its stdin is closed, with every descriptor that can be inherited.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False):
        held.close()
        for port in held.ports:
            hold("", 1, within=(port, port)).close()
