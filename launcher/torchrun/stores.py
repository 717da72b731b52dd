"""The TCPStore in which the agents and the workers of a round meet: a fresh one for each round, on the node of rank 0.

It listens at the port that the start signal of the generation names. Each node holds three of them for its whole
session, which are used in turn: a process that still tries to connect to the store of the previous round, or of the one
before that, finds no listener there.

A call of torch's store to a server that accepts and does not answer (a frozen host) returns when that answers again,
whatever its timeout. So each such call is made in a separate thread, and abandoned when the round is over.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # Defined in C++.

from launcher.torchrun.errors import RoundOver

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
TRY_S = 0.5
"""One attempt to reach the node of rank 0."""
PAUSE_S = 0.05
"""Between two attempts: that node starts its store as soon as it has received the start signal."""
SERVE_S = 10.0
"""To start listening, and to connect to itself: both take milliseconds."""
STORE_S = 300.0
"""Torch's own limit for a call of its store."""
HERE = "elastic-launch/here/{m_id}"
"""Key: a node has joined the round."""
ALL = "elastic-launch/all"
"""Key: all nodes of the round have joined."""
EXIT_BARRIER = "torchelastic/agent/terminal_state"
"""Prefix of the keys under which torch's agents meet when all workers of a node have ended well, and only then."""


def meet(
    at: tuple[str, int],
    m_id: int,
    size: int,
    goes_on: Callable[[], bool],
    ended: Callable[[str], None],
    succeeded: Callable[[], None] = lambda: None,
    *,
    reached: threading.Event,
) -> RoundStore | None:
    """Enter the store of a round, at that host and port, and wait until every node of the round is in it.

    Returns None if `goes_on` reports meanwhile that the round is over. Torch's agent learns of the round only
    afterwards: it cannot return from a round that it knows before it has started its workers. `reached` is set once
    the store was available. `goes_on`, `ended` and `succeeded` are passed to the store.
    """

    def enter() -> RoundStore | None:
        store: RoundStore | None = None
        while goes_on():
            try:
                if store is None:
                    with socket.create_connection(at, timeout=TRY_S):
                        pass  # Torch's own attempts would report on stderr that they fail.
                    store = RoundStore(*at, goes_on, ended, succeeded)
                    reached.set()
                    store.set(HERE.format(m_id=m_id), "")
                if m_id == 0 and store.check([HERE.format(m_id=other) for other in range(size)]):
                    store.set(ALL, "")
                if store.check([ALL]):
                    return store
            except (OSError, RuntimeError):  # Torch's errors are RuntimeErrors. There is no listener yet, or no longer.
                store = None
            time.sleep(PAUSE_S)
        return None

    try:
        return call_until(enter, goes_on)
    except RoundOver:
        return None


class RoundStore(TCPStore):
    """A separate connection to the store of a round, whose waits end when the round is over."""

    def __init__(
        self,
        host: str,
        port: int,
        goes_on: Callable[[], bool],
        ended: Callable[[str], None],
        succeeded: Callable[[], None] = lambda: None,
    ) -> None:
        """Connect. Raises torch's `RuntimeError`.

        `ended` gets one line when a wait ends with the round; `succeeded` is called when torch's agent enters its exit
        barrier, because every worker of this node has ended well.
        """
        super().__init__(host, port, is_master=False, timeout=timedelta(seconds=TRY_S))
        self.set_timeout(timedelta(seconds=STORE_S))
        self._goes_on = goes_on
        self._ended = ended
        self._succeeded = succeeded

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the limit of a call that names none."""
        super().set_timeout(timeout)
        self._limit_s = timeout.total_seconds()

    def get(self, key: str) -> bytes:
        """Return a value, when it exists. Raises `RoundOver` if the round is over before that."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Return values, when all exist. Raises `RoundOver` if the round is over before that."""
        try:
            return call_until(lambda: self._values(keys), self._goes_on)
        except (RoundOver, RuntimeError, TimeoutError) as error:
            text = (
                "this world ended before torchrun had started its workers: this torchrun exits, and the job stays "
                "open; start it again"
            )
            self._ended(text)
            raise RoundOver(text) from error

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until the keys exist, or the round is over: torch's agent waits like this at its exit barrier."""
        try:
            call_until(
                lambda: self._come(keys, timeout.total_seconds() if timeout is not None else self._limit_s),
                self._goes_on,
            )
        except RoundOver:
            self._ended("this world ended while torchrun was waiting for the others at its exit barrier: continuing")

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return it; 0 if the round is over."""
        if key.startswith(EXIT_BARRIER):
            self._succeeded()
        add = super().add
        try:
            return call_until(lambda: int(add(key, amount)), self._goes_on)
        except RoundOver:
            return 0

    def _values(self, keys: list[str]) -> list[bytes]:
        self._come(keys, self._limit_s)
        return list(super().multi_get(keys))

    def _come(self, keys: list[str], limit_s: float) -> None:
        until = time.monotonic() + limit_s
        while not self.check(keys):
            if not self._goes_on():
                raise RoundOver("the round is over")
            if time.monotonic() >= until:
                raise TimeoutError(f"not in the store of the round within {limit_s:g} s: {', '.join(keys)}")
            time.sleep(PAUSE_S)


def serve(port: int, goes_on: Callable[[], bool]) -> TCPStore:
    """Listen at every address until the last reference is gone.

    Raises `RuntimeError` (torch's) if the port is taken, and `RoundOver` if the round is over before it listens.
    Torch's own connection to the server goes over loopback: to an address that this host cannot reach itself torch
    would retry again and again, with stack traces on stderr. `meet` detects that silently.
    """
    limit = timedelta(seconds=SERVE_S)
    store = call_until(
        lambda: TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, timeout=limit),
        goes_on,
    )
    store.set_timeout(timedelta(seconds=STORE_S))
    return store


def call_until(call: Callable[[], T], goes_on: Callable[[], bool]) -> T:
    """Return what the call returns, or raise what it raises. Raises `RoundOver` as soon as `goes_on` is false."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except Exception as error:  # noqa: BLE001  # Raised again by the caller that waits.
            result.set_exception(error)

    threading.Thread(target=run, name="elastic-etcd store", daemon=True).start()
    while not wait([result], PAUSE_S).done:
        if not goes_on():
            raise RoundOver("the round is over")
    return result.result()
