"""How the workers meet before their process group stands, so that who is missing can be named.

Rank 0 hosts torch's store at MASTER_ADDR:MASTER_PORT, as torch's own env:// does; under torchrun its agent hosts it.
Each worker announces itself there. While some are missing, those who wait say which; a worker that prepares
(`elastic.preparing`) announces that, too, and nobody gives up meanwhile.
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
"""How long workers are waited for without another word; torch's default for gloo."""
NAMED_MAX: Final = 16
"""More missing ranks are counted and not named."""
REASON_MAX: Final = 200
TELL_EVERY_S: Final = 1.0
SAY_EVERY_S: Final = 10.0
"""How often rank 0 says on stderr who is missing, where no agent of ours hears it."""
CONNECT_LIMIT_S: Final = 60.0
ROOT: Final = "elastic/meet/"
FORMING: Final = "the process group; all workers are there"
"""What is waited for when all have met: that each of them reaches those that it speaks with."""


@dataclass
class PausableDeadline:
    """The time that is left to wait for others. It does not run while somebody prepares (pure)."""

    left_s: float
    at: float

    def spend(self, now: float, *, preparing: bool) -> bool:
        """Count the time since the last call; False once nothing is left."""
        self.left_s -= 0.0 if preparing else now - self.at
        self.at = now
        return self.left_s > 0


def missing_in_words(missing: Mapping[int, str], more: int = 0) -> str:
    """Name ranks and what they prepare: "rank 2 (downloading), rank 3 and 5 more"."""
    named = ", ".join(f"rank {rank} ({what})" if what else f"rank {rank}" for rank, what in missing.items())
    return named + (f" and {more} more" if more else "")


@dataclass
class Rendezvous:
    """One process's way to the others. `attempt` is the same in all: how often they have met before."""

    rank: int
    world_size: int
    host: str
    port: int
    agent_hosts: bool
    attempt: str
    end: ChannelClient | None
    store: Any = None
    preparing: str = ""
    """What this worker prepares, "" if nothing."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: threading.Thread | None = None
    _enough: threading.Event = field(default_factory=threading.Event)
    _announced: bool = False
    _found: set[int] = field(default_factory=set)

    # --- preparing ------------------------------------------------------------------------------------------------

    def announce(self, what: str) -> None:
        """Let the others know what this worker prepares, "" for nothing more. Does not wait, and does not fail."""
        with self._lock:
            self.preparing = what[:REASON_MAX]
            if self.store is not None:
                self._write()
            elif what and self._hosts:  # Not in a thread: that would import torch while the script does.
                with suppress(RuntimeError):  # `meet` raises it.
                    self._open()
                    self._write()
            elif what and self._thread is None:
                self._thread = threading.Thread(target=self._announce_later, name="elastic preparing", daemon=True)
                self._thread.start()

    def _announce_later(self) -> None:
        """Write it as soon as rank 0's store is there."""
        while not self._enough.is_set():
            if _port_wait.is_listening(self.host, self.port):
                with self._lock, suppress(RuntimeError):
                    if self.store is None:
                        self._open()
                    self._write()
                return
            self._enough.wait(_port_wait.POLL_MAX_S)

    def _write(self) -> None:
        """Bring the store up to date with `preparing`. A store that is gone says so elsewhere."""
        with suppress(RuntimeError):
            if self.preparing or self._announced:
                self.store.set(self._key("what", self.rank), self.preparing)
            if bool(self.preparing) != self._announced:
                self._announced = bool(self.preparing)
                self.store.add(self._key("preparing"), 1 if self._announced else -1)

    # --- meeting --------------------------------------------------------------------------------------------------

    def meet(self, limit_s: float) -> Any:
        """Wait until all are there; torch's store for their process group.

        `limit_s` is how long others are waited for while nobody prepares. Raises `WorkersMissing` that names them,
        and what torch says when the store cannot be opened.
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
        """Open the store, once rank 0 has it."""
        began, who = time.monotonic(), "the launcher's store" if self.agent_hosts else "rank 0"
        while not self._hosts and not _port_wait.is_listening(self.host, self.port):
            if not patience.spend(time.monotonic(), preparing=False):
                raise WorkersMissing(
                    f"{who} was not there at {self.host}:{self.port} for {limit_s:.0f} s; look at its log"
                )
            teller.report(who)
            time.sleep(_port_wait.pause_s(time.monotonic() - began, self.world_size))
        self._open()

    def _gather(self, patience: PausableDeadline, teller: _MissingReporter, limit_s: float) -> Any:
        own_key, everybody = self._key("here", self.rank), self._key("all")
        if not self.store.check([own_key]):
            self.store.set(own_key, "1")
            if self.store.add(self._key("count"), 1) >= self.world_size:
                self.store.set(everybody, "1")
        began = time.monotonic()
        while not self.store.check([everybody]):
            preparing = self.store.add(self._key("preparing"), 0) > 0
            alive = patience.spend(time.monotonic(), preparing=preparing)
            if not alive or teller.due:
                missing = self._missing()
                if not alive:
                    raise WorkersMissing(
                        f"waited {limit_s:.0f} s for {missing}; look at the logs of those that did not come, and call "
                        "elastic.preparing() where something takes long"
                    )
                teller.report(missing, prepares=preparing)
            time.sleep(_port_wait.pause_s(time.monotonic() - began, self.world_size))
        teller.all_met()
        return self.store

    def _missing(self) -> str:
        """Who has not come, in words, with what they prepare."""
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
    """Says who is missing: to the agent about once a second, or without an agent on rank 0's stderr."""

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
    """The meeting of a worker with this environment; None where it names none, or makes no sense."""
    try:
        if not environment.names_group(environ):
            return None
        own = environment.read(environ)
    except ConfigError:  # `elastic.init` says it.
        return None
    host, port = split_host_port(own.master)
    agent_hosts = environ.get(_port_wait.AGENT_STORE) == "True"
    return Rendezvous(
        rank=own.rank,
        world_size=own.world_size,
        host=host,
        port=port,
        agent_hosts=agent_hosts,
        # The agent's store may outlive the workers; one that rank 0 hosts is as new as they are.
        attempt=f"{own.restarts if agent_hosts else 0}.{attempt}",
        end=end,
    )


_meetings: Final[list[tuple[int, Rendezvous | None]]] = []
"""The process, and each of its meetings; the last one is to come. The others need the store of rank 0 for as long as
they run, so that those before are kept."""


def current(environ: Mapping[str, str], end: ChannelClient | None) -> Rendezvous | None:
    """The meeting that this process has before it. What it forks has none: a store is not shared with a fork."""
    pid = os.getpid()
    if not _meetings:
        _meetings.append((pid, rendezvous(environ, end)))
    owner, found = _meetings[-1]
    return found if owner == pid else None


def begin_next_attempt(environ: Mapping[str, str], end: ChannelClient | None) -> None:
    """All have met: should they meet again, the words of this time do not count."""
    _meetings.append((os.getpid(), rendezvous(environ, end, len(_meetings))))
