"""Ports that are held: torch can listen on them, nobody else gets them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from datetime import timedelta

import pytest

from elastic.errors import ConfigError
from launcher.net.ports import MASTERS, hold, hold_named, node_ports
from tests.support.reserved_ports import BELOW_EPHEMERAL, entered, free_range, listening, part


def test_as_many_different_ports_are_held_as_were_asked_for() -> None:
    with hold("", 20) as held:
        assert len(set(held)) == 20
        assert all(port > 0 for port in held)
    with hold("127.0.0.1", 0) as held:
        assert held == ()


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_torchs_store_listens_on_a_held_port_and_is_reached_there(host: str) -> None:
    from torch._C._distributed_c10d import TCPStore

    with hold(host, 1) as held:
        (port,) = held
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
            "127.0.0.1", held[0], is_master=True, wait_for_workers=False, timeout=timeout, use_libuv=False
        )
        assert server.port == held[0]


@pytest.mark.parametrize(("first", "second"), [("", ""), ("127.0.0.1", "127.0.0.1"), ("", "127.0.0.1"), ("", "::1")])
def test_a_held_port_cannot_be_held_again(first: str, second: str) -> None:
    with hold(first, 1) as held, pytest.raises(ConfigError, match="need 1 free port"):
        entered(hold(second, 1, within=(held[0], held[0])))


def test_a_port_on_which_a_store_listens_cannot_be_taken() -> None:
    with hold("", 1) as held, listening(held[0], reuse=True):
        with pytest.raises(OSError, match="in use"):
            listening(held[0], reuse=True)
        with pytest.raises(ConfigError):
            entered(hold("", 1, within=(held[0], held[0])))


def test_the_kernel_gives_a_held_port_to_nobody() -> None:
    with hold("", 1) as held:
        for _ in range(200):
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                assert other.getsockname()[1] != held[0]


def test_a_port_is_free_again_after_close() -> None:
    with hold("", 1) as held:
        pass
    with hold("", 1, within=(held[0], held[0])) as again:
        assert again == held


def test_a_host_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"203\.0\.113\.77"):
        entered(hold("203.0.113.77", 1))


def test_a_process_that_we_start_does_not_inherit_the_ports() -> None:
    with contextlib.ExitStack() as stack:
        with hold("", 3) as held:
            # It lives until its stdin is closed, with every descriptor that can be inherited.
            stack.enter_context(subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False))
        for port in held:
            entered(hold("", 1, within=(port, port)))


# A range


def test_no_two_processes_that_share_the_tests_give_out_the_same_port() -> None:
    assert part({}) == BELOW_EPHEMERAL
    parts = [part({"PYTEST_XDIST_WORKER": f"gw{n}", "PYTEST_XDIST_WORKER_COUNT": "3"}) for n in range(3)]
    assert sorted(port for one in parts for port in one) == [*BELOW_EPHEMERAL]
    again = part({"PYTEST_XDIST_WORKER": "gw3", "PYTEST_XDIST_WORKER_COUNT": "3"})
    assert again == parts[0], "one that crashed is replaced by one with another number"


def test_ports_of_a_range_are_the_first_free_ones_from_its_lower_end() -> None:
    low, high = free_range(5)
    with hold("", 1, within=(low + 1, low + 1)), hold("", 3, within=(low, high)) as held:
        assert held == (low, low + 2, low + 3)


def test_too_few_free_ports_say_how_many_there_were_and_none_is_held() -> None:
    low, high = free_range(5)
    with hold("", 3, within=(low, low + 2)):
        with pytest.raises(ConfigError) as caught:
            entered(hold("", 4, within=(low, high)))
        assert str(caught.value) == (f"need 4 free ports in {low}:{high}, found 2; widen --port-range, or free some")
        entered(hold("", 2, within=(low, high)))


def test_a_range_that_is_too_narrow_says_how_wide_it_must_be() -> None:
    low, high = free_range(5)
    with pytest.raises(
        ConfigError, match=f"need 6 free ports in {low}:{high}, found 5; widen --port-range to 6 ports$"
    ):
        entered(hold("", 6, within=(low, high)))


def test_a_port_that_an_earlier_job_has_just_let_go_is_taken_when_no_other_is_left() -> None:
    low, high = free_range(3)
    leave_closed_connections(low)
    with hold("", 2, within=(low, high)) as held:
        assert held == (low + 1, high)
    with hold("", 3, within=(low, high)) as held:
        assert held == (low, low + 1, high)
        listening(low, reuse=True).close()  # As a worker does.


def test_a_held_port_that_lingers_cannot_be_held_again() -> None:
    (port, _) = free_range(1)
    leave_closed_connections(port)
    with hold("", 1, within=(port, port)):
        with pytest.raises(ConfigError):
            entered(hold("", 1, within=(port, port)))
        with pytest.raises(ConfigError):
            entered(hold_named(port, "--ctrl-port"))
    entered(hold("", 1, within=(port, port)))


# Every port of a node


def test_a_node_holds_a_port_for_each_worker_three_for_torchs_store_and_one_for_the_agent() -> None:
    with node_ports((0,) * 2) as held:
        assert (len(held.workers), len(held.masters)) == (2, MASTERS)
        assert len({*held.workers, *held.masters, held.link}) == 2 + MASTERS + 1


def test_the_workers_of_a_node_have_the_first_ports_of_its_range() -> None:
    low, high = free_range(6)
    with node_ports((0,) * 2, within=(low, high)) as held:
        assert held.workers == (low, low + 1)
        assert held.masters == (low + 2, low + 3, low + 4)
        assert held.link == high


def test_the_control_port_is_the_only_one_where_workers_meet_and_nothing_else_is_there() -> None:
    low, high = free_range(4)
    with node_ports((0,) * 2, within=(low, high), control=low + 1) as held:
        assert held.masters == (low + 1,)
        assert (held.workers, held.link) == ((low, low + 2), high)
        with pytest.raises(ConfigError):
            entered(hold("", 1, within=(low + 1, low + 1)))
    entered(hold("", 4, within=(low, high)))


def test_a_busy_control_port_is_named_and_holds_nothing_else() -> None:
    low, high = free_range(4)
    with hold("", 1, within=(low, low)):
        with pytest.raises(ConfigError) as caught:
            entered(node_ports((0,), within=(low, high), control=low))
        assert str(caught.value) == (
            f"--ctrl-port {low} cannot be used on this machine (Address already in use); free it, or use another "
            "--ctrl-port"
        )
    with pytest.raises(ConfigError, match="need 5 free ports"):
        entered(node_ports((0,) * 4, within=(low, high), control=low))
    entered(hold("", 4, within=(low, high)))


def test_two_nodes_of_one_machine_with_loopback_addresses_of_their_own_hold_one_control_port() -> None:
    from torch._C._distributed_c10d import TCPStore

    (port, _) = free_range(1)
    with (
        node_ports((0,), control=port, host="127.0.0.1"),
        node_ports((0,), control=port, host="127.0.0.2") as second,
    ):
        assert second.masters == (port,)
        for master in ("127.0.0.1", "127.0.0.2"):  # Whichever of them is M_id 0.
            server = TCPStore(master, port, is_master=True, wait_for_workers=False, timeout=timedelta(0, 20))
            client = TCPStore(master, port, is_master=False, timeout=timedelta(0, 20))
            server.set("key", "value")
            assert client.get("key") == b"value"
            del client, server


def test_a_node_with_another_loopback_address_comes_while_a_worker_listens_on_the_control_port() -> None:
    (port, _) = free_range(1)
    with node_ports((0,), control=port, host="127.0.0.1"), listening(port, reuse=True):
        with node_ports((0,), control=port, host="127.0.0.2") as second:
            assert second.masters == (port,)
            with pytest.raises(ConfigError):
                entered(hold_named(port, "--ctrl-port", "127.0.0.2"))
        with pytest.raises(ConfigError):
            entered(hold_named(port, "--ctrl-port"))
        entered(hold_named(port, "--ctrl-port", "127.0.0.2"))


def test_the_control_port_of_a_job_that_has_just_ended_can_be_held_again() -> None:
    (port, _) = free_range(1)
    leave_closed_connections(port)
    with pytest.raises(OSError, match="in use"):
        listening(port, reuse=False)
    with node_ports((0,), control=port) as held:
        assert held.masters == (port,)


def test_a_control_port_where_somebody_listens_or_is_connected_is_busy() -> None:
    (port, _) = free_range(1)
    leave_closed_connections(port)
    with listening(port, reuse=True) as server:
        with pytest.raises(ConfigError, match=f"--ctrl-port {port} cannot be used"):
            entered(hold_named(port, "--ctrl-port"))
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
    with client, accepted, pytest.raises(ConfigError, match=f"--ctrl-port {port} cannot be used"):
        entered(hold_named(port, "--ctrl-port"))


def leave_closed_connections(port: int) -> None:
    """Be a server on the port that closes a connection first and ends: the port lingers in TIME_WAIT."""
    with listening(port, reuse=True) as server, socket.create_connection(("127.0.0.1", port)) as client:
        accepted, _ = server.accept()
        accepted.close()
        assert client.recv(1) == b""
