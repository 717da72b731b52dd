"""The rendezvous of the workers before they form their process group, which names the missing ranks.

Rank 0 hosts torch's store at MASTER_ADDR:MASTER_PORT, as torch's env:// does; under torchrun its agent hosts it. Each
worker registers there. Waiting workers report the missing ranks. A worker that prepares (`elastic.preparing`) announces
that too, and the timeout of the waiting workers does not run meanwhile.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from elastic import _port_wait, environment
from elastic._text import split_host_port
from elastic.channel.client import ChannelClient
from elastic.channel.messages import JoiningGroup, clock
from elastic.errors import ConfigError, WorkersMissing

LIMIT_S: Final = 1800.0
"""The timeout of a rendezvous unless the script sets one; torch's default for gloo."""
NAMED_MAX: Final = 16
"""Missing ranks that a message names; further ones are counted."""
REASON_MAX: Final = 200
TELL_EVERY_S: Final = 1.0
SAY_EVERY_S: Final = 10.0
"""The interval at which rank 0 writes the missing ranks to stderr if there is no agent."""
CONNECT_LIMIT_S: Final = 60.0
ROOT: Final = "elastic/meet/"
FORMING: Final = "the process group; all workers have joined"
"""What the workers wait for after the rendezvous: each connects to its peers."""


@dataclass
class PausableDeadline:
    """The remaining time to wait for other workers. It does not run while one of them prepares (pure)."""

    left_s: float
    at: float

    def spend(self, now: float, *, preparing: bool) -> bool:
        """Subtract the time since the last call; False once none is left."""
        self.left_s -= 0.0 if preparing else now - self.at
        self.at = now
        return self.left_s > 0


def missing_in_words(missing: Mapping[int, str], more: int = 0) -> str:
    """Name ranks with their preparations: "rank 2 (downloading), rank 3 and 5 more"."""
    named = ", ".join(f"rank {rank} ({what})" if what else f"rank {rank}" for rank, what in missing.items())
    return named + (f" and {more} more" if more else "")


@dataclass
class Rendezvous:
    """One worker's part in a rendezvous. `attempt` is the same in all workers: the number of rendezvous before."""

    rank: int
    world_size: int
    host: str
    port: int
    agent_hosts: bool
    attempt: str
    end: ChannelClient | None
    store: Any = None
    preparing: str = ""
    """The preparation of this worker, "" if none."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _enough: threading.Event = field(default_factory=threading.Event)
    _announced: bool = False
    _found: set[int] = field(default_factory=set)

    # --- preparing ------------------------------------------------------------------------------------------------

    def announce(self, what: str) -> None:
        """Announce the preparation of this worker to the others, "" for none. Never blocks or raises."""
        with self._lock:
            self.preparing = what[:REASON_MAX]
            if self.store is not None:
                self._write()
            elif what and self._hosts:  # A thread would import torch at the same time as the script.
                with suppress(RuntimeError):  # `meet` raises it.
                    self._open()
                    self._write()
            elif what and self._thread is None:
                self._thread = threading.Thread(target=self._announce_later, name="elastic preparing", daemon=True)
                self._thread.start()

    def _announce_later(self) -> None:
        """Write the preparation once rank 0's store listens."""
        while not self._enough.is_set():
            if _port_wait.is_listening(self.host, self.port):
                with self._lock, suppress(RuntimeError):
                    if self.store is None:
                        self._open()
                    self._write()
                return
            self._enough.wait(_port_wait.POLL_MAX_S)

    def _write(self) -> None:
        """Write `preparing` to the store. `meet` raises if the store is gone."""
        with suppress(RuntimeError):
            if self.preparing or self._announced:
                self.store.set(self._key("what", self.rank), self.preparing)
            if bool(self.preparing) != self._announced:
                self._announced = bool(self.preparing)
                self.store.add(self._key("preparing"), 1 if self._announced else -1)

    # --- meeting --------------------------------------------------------------------------------------------------

    def meet(self, limit_s: float) -> Any:
        """Wait for all workers, and return torch's store for their process group.

        `limit_s` is the timeout, which does not run while a worker prepares. Raises `WorkersMissing`, which names the
        missing ranks, and torch's RuntimeError if the store cannot be opened.
        """
        self._enough.set()
        if self._thread is not None:
            self._thread.join(CONNECT_LIMIT_S)
        self.announce("")
        patience = PausableDeadline(limit_s, time.monotonic())
        teller = _MissingReporter(self.end, self.rank)
        if self.store is None:
            self._reach(patience, teller, limit_s)
        return self._gather(patience, teller, limit_s)

    def _reach(self, patience: PausableDeadline, teller: _MissingReporter, limit_s: float) -> None:
        """Open the store once its host listens."""
        began, who = time.monotonic(), "the launcher's store" if self.agent_hosts else "rank 0"
        while not self._hosts and not _port_wait.is_listening(self.host, self.port):
            if not patience.spend(time.monotonic(), preparing=False):
                raise WorkersMissing(
                    f"{who} did not listen at {self.host}:{self.port} for {limit_s:.0f} s; see its log"
                )
            teller.report(who)
            time.sleep(_port_wait.pause_s(time.monotonic() - began, self.world_size))
        self._open()

    def _gather(self, patience: PausableDeadline, teller: _MissingReporter, limit_s: float) -> Any:
        own_key, all_key = self._key("here", self.rank), self._key("all")
        if not self.store.check([own_key]):
            self.store.set(own_key, "1")
            if self.store.add(self._key("count"), 1) >= self.world_size:
                self.store.set(all_key, "1")
        began = time.monotonic()
        while not self.store.check([all_key]):
            preparing = self.store.add(self._key("preparing"), 0) > 0
            alive = patience.spend(time.monotonic(), preparing=preparing)
            if not alive or teller.due:
                missing = self._missing()
                if not alive:
                    raise WorkersMissing(
                        f"waited {limit_s:.0f} s for {missing}; see the logs of the missing ranks, and call "
                        "elastic.preparing() before a step that takes long"
                    )
                teller.report(missing, prepares=preparing)
            time.sleep(_port_wait.pause_s(time.monotonic() - began, self.world_size))
        teller.all_met()
        return self.store

    def _missing(self) -> str:
        """Name the missing ranks with their preparations."""
        missing: dict[int, str] = {}
        for rank in range(self.world_size):
            if rank in self._found:
                continue
            if self.store.check([self._key("here", rank)]):
                self._found.add(rank)
                continue
            what = self._key("what", rank)
            missing[rank] = self.store.get(what).decode(errors="replace") if self.store.check([what]) else ""
            if len(missing) == NAMED_MAX:
                break
        return missing_in_words(missing, self.world_size - self.store.add(self._key("count"), 0) - len(missing))

    # --- the store ------------------------------------------------------------------------------------------------

    @property
    def _hosts(self) -> bool:
        return self.rank == 0 and not self.agent_hosts

    def _open(self) -> None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]  # It is there, and documented.

        self.store = TCPStore(
            self.host,
            self.port,
            self.world_size,
            is_master=self._hosts,
            timeout=timedelta(seconds=CONNECT_LIMIT_S),
            wait_for_workers=False,
            multi_tenant=True,
        )

    def _key(self, name: str, rank: int | None = None) -> str:
        return f"{ROOT}{self.attempt}/{name}" + ("" if rank is None else f"/{rank}")


class _MissingReporter:
    """Reports the missing ranks: to the agent about once a second, or without an agent to the stderr of rank 0."""

    def __init__(self, end: ChannelClient | None, rank: int) -> None:
        self._end = end
        self._rank = rank
        self._began = time.monotonic()
        self._asked_at = clock()
        self._every_s = TELL_EVERY_S if end is not None else SAY_EVERY_S
        self._next = self._began + self._every_s

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    def report(self, missing: str, *, prepares: bool = False) -> None:
        if not self.due:
            return
        now = time.monotonic()
        self._next = now + self._every_s
        if self._end is not None:
            self._end.send(JoiningGroup(missing, prepares, at=self._asked_at))
        elif self._rank == 0:
            sys.stderr.write(f"[elastic] waiting {now - self._began:.0f} s for {missing}\n")
            sys.stderr.flush()

    def all_met(self) -> None:
        if self._end is not None:
            self._end.send(JoiningGroup(FORMING, met=True, at=self._asked_at))


def rendezvous(environ: Mapping[str, str], end: ChannelClient | None, attempt: int = 0) -> Rendezvous | None:
    """Return the rendezvous that an environment names; None if it names none or is invalid."""
    try:
        if not environment.names_group(environ):
            return None
        own = environment.read(environ)
    except ConfigError:  # `elastic.init` reports it.
        return None
    host, port = split_host_port(own.master)
    agent_hosts = environ.get(_port_wait.AGENT_STORE) == "True"
    return Rendezvous(
        rank=own.rank,
        world_size=own.world_size,
        host=host,
        port=port,
        agent_hosts=agent_hosts,
        # The agent's store may outlive the workers; the store of rank 0 is as new as they are.
        attempt=f"{own.restarts if agent_hosts else 0}.{attempt}",
        end=end,
    )


_meetings: Final[list[tuple[int, Rendezvous | None]]] = []
"""The pid of this process and its rendezvous; the last is the next one. Earlier ones stay here, because the other
workers need the store of rank 0 as long as they run."""


def current(environ: Mapping[str, str], end: ChannelClient | None) -> Rendezvous | None:
    """Return the next rendezvous of this process; None in a fork of it, which cannot share the store."""
    pid = os.getpid()
    if not _meetings:
        _meetings.append((pid, rendezvous(environ, end)))
    owner, meeting = _meetings[-1]
    return meeting if owner == pid else None


def begin_next_attempt(environ: Mapping[str, str], end: ChannelClient | None) -> None:
    """Start the next attempt after a complete rendezvous; it ignores the keys of this one."""
    _meetings.append((os.getpid(), rendezvous(environ, end, len(_meetings))))
