"""The shell that looks whom a node reaches while its workers wait: over real sockets and a store in memory."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from elastic import _net
from elastic.channel.messages import GroupFormed, JoiningGroup, Progress, RestoreDone, WorkerMessage
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, Listing, Put
from elastic.core.model import ChangeReason, Generation, GenerationMember, Member
from elastic.core.view import encode
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.health import partition_detector
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from launcher.peers import partition_watch
from launcher.peers.listener import PeerListener
from launcher.peers.partition_watch import PartitionWatch
from launcher.workers.reports.worker_channel import WorkerChannel
from tests.support.worker_messages import tracked

KEYS = JobKeys("j1")
LIMIT_S = 0.2
STORY_LIMIT_S = 30.0
WAITS = JoiningGroup("rank 1")


class SlowStore(MemoryStore):
    """A store that answers a listing once it may."""

    def __init__(self, core: MemoryCore) -> None:
        super().__init__(core, time.monotonic)
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.may_answer.set()

    async def list(self, range: KeyRange, **how: Any) -> Listing:  # noqa: A002
        """List, later."""
        self.asked.set()
        await self.may_answer.wait()
        return await super().list(range, **how)


class Watched:
    """Node a with one worker. What its watch tells is put into `told`: the generation, and who is not reached."""

    def __init__(self, folder: Path) -> None:
        agent_log = AgentLog("a", Console(2), level=Verbosity.QUIET)
        self.talk = WorkerChannel(folder / "talk", agent_log, lambda heard, message: None)
        self.store = SlowStore(MemoryCore())
        self.told: asyncio.Queue[tuple[int, tuple[str, ...]]] = asyncio.Queue()
        self.watch = PartitionWatch(
            self.talk,
            self.store,
            KEYS,
            "a",
            LIMIT_S,
            linked=frozenset,
            tell=lambda g, nodes, late: self.told.put_nowait((g, nodes)),
            give_up=lambda g, cause, seen: None,
        )
        self.g = 0

    async def member(self, node: str, *, host: str = "127.0.0.1", port: int | None = None) -> None:
        """A node registers; at the port that is taken for it nobody listens, unless one is given."""
        value = Member(host=host, slots=1, masters=(7000,), ports=(8000,), link=closed() if port is None else port)
        await self.store.txn([], [Put(KEYS.member(node), encode(value))])

    def begin(self, nodes: str) -> None:
        """The next generation has these nodes, and its worker here waits."""
        self.g += 1
        places = tuple(GenerationMember(node, f"host-{node}", (7000,), (8000,)) for node in nodes)
        self.watch.begin(
            Generation(g=self.g, run=1, leader="", why=ChangeReason.FIRST, reason="", members=places, slots=1)
        )
        self.says(WAITS)

    def says(self, message: WorkerMessage) -> None:
        """The worker says something. Its connection is not looked at."""
        self.watch.on_message(tracked(0), message)


def closed() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def played(folder: Path, story: Callable[[Watched], Coroutine[Any, Any, None]]) -> None:
    """Play a story while the watch runs; it fails when the watch does."""

    async def main() -> None:
        watched = Watched(folder)
        async with asyncio.timeout(STORY_LIMIT_S), asyncio.TaskGroup() as group:
            running = group.create_task(watched.watch.run())
            await story(watched)
            running.cancel()

    asyncio.run(main())


def test_what_a_worker_says_while_it_is_stopped_is_not_that_the_way_is_open(tmp_path: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.member("b")
        watched.begin("ab")
        assert await watched.told.get() == (1, ("b",))
        watched.watch.end()
        while not watched.told.empty():  # It was given up meanwhile.
            watched.told.get_nowait()
        watched.says(WAITS)
        assert watched.told.empty()

    played(tmp_path, story)


def test_a_way_that_is_open_again_is_told(tmp_path: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.member("b")
        watched.begin("ab")
        assert await watched.told.get() == (1, ("b",))
        watched.says(GroupFormed())
        while (told := await watched.told.get()) != (1, ()):
            assert told == (1, ("b",))

    played(tmp_path, story)


def test_what_was_read_for_an_older_generation_is_not_looked_at_in_the_next(tmp_path: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.member("b")
        await watched.member("c")
        watched.store.may_answer.clear()
        watched.begin("ab")
        await watched.store.asked.wait()
        watched.watch.end()
        watched.begin("ac")
        watched.store.may_answer.set()
        assert await watched.told.get() == (2, ("c",)), "and not b, which is not in it"

    played(tmp_path, story)


def test_another_generation_may_begin_at_any_moment_of_a_look(tmp_path: Path) -> None:
    async def story(watched: Watched) -> None:
        await watched.member("b")
        await watched.member("c")
        for turns in range(8):
            watched.store.asked.clear()
            watched.store.may_answer.clear()
            watched.begin("ab")
            await watched.store.asked.wait()
            watched.store.may_answer.set()
            for _ in range(turns):
                await asyncio.sleep(0)
            watched.begin("ac")
            while await watched.told.get() != (watched.g, ("c",)):
                continue

    played(tmp_path, story)


def test_a_name_that_no_resolver_answers_for_says_nothing_of_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()

    async def resolved(host: str) -> tuple[str, ...]:
        if host == "a-name":
            await never.wait()
        return (host,)

    monkeypatch.setattr(partition_watch, "resolved", resolved)
    monkeypatch.setattr(partition_watch, "CONNECT_LIMIT_S", 0.05)

    async def story(watched: Watched) -> None:
        await watched.member("b")
        await watched.member("c", host="a-name")
        watched.begin("abc")
        assert await watched.told.get() == (1, ("b",))

    played(tmp_path, story)


def test_an_agent_without_a_descriptor_left_takes_nobody_for_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = _net.connected_socket, closed()

    async def connected_socket(address: str, port: int) -> socket.socket:
        if port == full:
            raise OSError(errno.EMFILE, "Too many open files")
        return await real(address, port)

    monkeypatch.setattr(partition_watch, "connected_socket", connected_socket)

    async def story(watched: Watched) -> None:
        await watched.member("b")
        await watched.member("c", port=full)
        watched.begin("abc")
        assert await watched.told.get() == (1, ("b",))

    played(tmp_path, story)


def test_a_name_with_several_addresses_is_reached_at_any_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.9", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: known)

    async def story(watched: Watched) -> None:
        listener = PeerListener("127.0.0.1", "j1", "c")
        await watched.member("b")
        await watched.member("c", host="a-name", port=listener.port)
        watched.begin("abc")
        assert await watched.told.get() == (1, ("b",))
        listener.close()

    played(tmp_path, story)


def test_who_is_awaited_for_less_long_than_before_is_looked_for_sooner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first step may take long, and the second one is there in a moment."""
    monkeypatch.setattr(partition_detector, "FIRST_STEP", 1e6)

    async def story(watched: Watched) -> None:
        await watched.member("b")
        watched.begin("ab")
        watched.says(RestoreDone(1))
        await asyncio.sleep(0)  # The watch has seen it.
        watched.says(Progress(2, 2, {}))
        assert await watched.told.get() == (1, ("b",))

    played(tmp_path, story)
