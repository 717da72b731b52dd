"""torch's own rendezvous, as torchrun uses it (dynamic, over a TCPStore), with many agents in one process.

Each agent is a thread with its own connection to the store. Counted are the reads and writes of the rendezvous' state
that all of them make together, and their bytes. `meet_alone` runs this in a process that has run nothing else, on one
core: only one thread of a process runs Python at a time, and when they hand over between two cores, the same agents
need five times as long in one run and nothing more in another.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousTimeout

JOIN_LIMIT_S = 280
"""torchrun's own limit is 600 s."""


@dataclass(frozen=True, slots=True)
class Met:
    """How long it took until all had their rank, what was asked of the store, and how many bytes the state has."""

    seconds: float
    calls: int
    bytes: int
    state_bytes: int


class _Counter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls = self.bytes = self.largest = 0

    def add(self, length: int) -> None:
        with self._lock:
            self.calls += 1
            self.bytes += length
            self.largest = max(self.largest, length)


class _Counting(C10dRendezvousBackend):
    def __init__(self, store: TCPStore, run_id: str, counter: _Counter) -> None:
        super().__init__(store, run_id)
        self._counter = counter

    def get_state(self) -> Any:
        found = super().get_state()
        self._counter.add(len(found[0]) if found else 0)
        return found

    def set_state(self, state: bytes, token: Any = None) -> Any:
        self._counter.add(len(state))
        return super().set_state(state, token)


def meet_alone(nodes: int) -> Met | None:
    """Let the agents meet in a new process, which the benchmark's own memory and threads do not slow down."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_stay_on_one_core) as process:
        return process.submit(meet, nodes).result()


def _stay_on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def meet(nodes: int) -> Met | None:
    """Let so many agents meet; None if they did not within `JOIN_LIMIT_S`."""
    run_id, counter = uuid.uuid4().hex, _Counter()
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    barrier = threading.Barrier(nodes + 1)

    def agent() -> tuple[int, Any]:
        store = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        backend = _Counting(store, run_id, counter)
        limit = RendezvousTimeout(join=timedelta(seconds=JOIN_LIMIT_S))
        handler = DynamicRendezvousHandler.from_backend(run_id, store, backend, nodes, nodes, timeout=limit)
        barrier.wait()
        found = handler.next_rendezvous()
        return found.rank, handler

    with ThreadPoolExecutor(nodes) as pool:
        running = [pool.submit(agent) for _ in range(nodes)]
        barrier.wait()
        began = time.monotonic()
        try:
            ranks = sorted(one.result()[0] for one in running)
        except RendezvousTimeoutError:
            return None
        took = time.monotonic() - began
        for one in running:
            one.result()[1].shutdown()
    assert ranks == list(range(nodes))
    return Met(took, counter.calls, counter.bytes, counter.largest)
