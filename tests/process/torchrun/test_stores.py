"""The store of a round of torchrun: who waits in it does so for as long as the round goes on, and no longer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from launcher.torchrun.errors import RoundOver
from launcher.torchrun.stores import RoundStore, meet, serve


class Round:
    """Whether it goes on, and what was said of its end."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.reached = threading.Event()
        self.looks = 0
        self.said: list[str] = []

    def goes_on(self) -> bool:
        """Tell, and count how often that was asked."""
        self.looks += 1
        return not self.over.is_set()

    def over_soon(self) -> bool:
        """Tell that it goes on, a few times."""
        return self.goes_on() and self.looks < 10


def met(port: int, m_id: int, round_: Round, goes_on: Callable[[], bool]) -> RoundStore | None:
    """What one of two nodes gets in the store at this port."""
    return meet(("127.0.0.1", port), m_id, 2, goes_on, round_.said.append, reached=round_.reached)


class Between:
    """A way to a server, on which nothing goes any more once it is frozen."""

    def __init__(self, to: int) -> None:
        self._to = ("127.0.0.1", to)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.frozen = threading.Event()
        self._open: list[socket.socket] = [self._door]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Between:
        self._begin(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _begin(self, run: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=run, args=args))
        self._threads[-1].start()

    def _take(self) -> None:
        here, _ = self._door.accept()
        there = socket.create_connection(self._to)
        self._open += [here, there]
        self._begin(self._pass, here, there)
        self._begin(self._pass, there, here)

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while said := source.recv(4096):
                if not self.frozen.is_set():
                    sink.sendall(said)


def test_a_node_that_accepts_and_says_nothing_is_waited_for_only_while_the_round_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        round_ = Round()
        assert met(frozen.getsockname()[1], 1, round_, round_.over_soon) is None
        assert not round_.reached.is_set()


def test_nobody_leaves_the_meeting_before_all_are_there() -> None:
    server = serve(0, lambda: True)
    round_ = Round()
    assert met(server.port, 0, round_, round_.over_soon) is None
    assert round_.reached.is_set()
    round_ = Round()
    with ThreadPoolExecutor() as pool:
        stores = list(pool.map(lambda m_id: met(server.port, m_id, round_, round_.goes_on), (0, 1)))
    assert all(isinstance(store, RoundStore) for store in stores)
    assert round_.said == []


def test_a_wait_at_the_exit_barrier_ends_with_the_round_and_says_so() -> None:
    server = serve(0, lambda: True)
    round_ = Round()
    store = RoundStore("127.0.0.1", server.port, round_.over_soon, round_.said.append)
    store.wait(["never"])
    assert round_.said == ["this world ended while torchrun was waiting for the others at its exit barrier: continuing"]


def test_a_number_is_added_to_and_is_0_where_the_store_is_silent_and_the_round_over() -> None:
    server = serve(0, lambda: True)
    round_ = Round()
    with Between(server.port) as between:
        store = RoundStore("127.0.0.1", between.port, round_.goes_on, round_.said.append)
        assert [store.add("members", 1), store.add("members", 2)] == [1, 3]
        between.frozen.set()
        round_.over.set()
        assert store.add("members", 1) == 0


def test_a_wait_for_ranks_ends_torchrun_with_exit_code_4_when_the_round_is_over() -> None:
    server = serve(0, lambda: True)
    round_ = Round()
    store = RoundStore("127.0.0.1", server.port, round_.over_soon, round_.said.append)
    with pytest.raises(RoundOver) as ended:
        store.get("torchelastic/assigned_ranks/1")
    assert ended.value.code == 4
    assert round_.said == [str(ended.value)]
    assert "the job stays open" in round_.said[0]


def test_a_store_that_is_gone_ends_a_wait_for_ranks_in_the_same_way() -> None:
    server = serve(0, lambda: True)
    round_ = Round()
    store = RoundStore("127.0.0.1", server.port, round_.goes_on, round_.said.append)
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(store.multi_get, ["never"])
        del server
        with pytest.raises(RoundOver):
            wait.result()
    assert len(round_.said) == 1
