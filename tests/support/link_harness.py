"""What the tests of links have in common: agents that watch and are watched, in this process or in one of their own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

from elastic.core.agent.actions import LinkTarget
from elastic.core.agent.events import PeerTried
from elastic.core.agent.state import SilentPeer
from launcher.peers.links import PeerLinks
from launcher.peers.listener import PeerListener
from launcher.peers.silence_detector import NEVER
from tests.scripts.link_peer import JOB

ROOT = Path(__file__).parents[2]
LIMIT_S = 100.0
SECRET = "the secret of the job"


def played(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await story()

    asyncio.run(limited())


class Watching:
    """An agent that watches, and what its links told it, in order."""

    def __init__(self, node: str = "w-1", secret: str = SECRET) -> None:
        self.told: list[tuple[object, ...]] = []
        self.at: list[float] = []
        self.last: tuple[object, ...] = ()
        self._proofs: list[tuple[object, ...]] = []
        self._news = asyncio.Event()
        self._silent: frozenset[str] = frozenset()
        self.ever_silent: set[str] = set()
        self.heard_again: set[str] = set()
        self._held_up_at = NEVER
        self.tried: list[PeerTried] = []
        self.grant_s = 7.0
        self.links = PeerLinks(
            JOB,
            node,
            on_change=lambda nodes: self._tell("up", *sorted(nodes)),
            on_proof=lambda node, revision, host, at: self._tell("proof", node, revision, host),
            on_answered=lambda number, nodes: self._tell("answered", number, *sorted(nodes)),
            grants=self._grants,
            on_vouched=lambda node, g, asked_at, seconds: self._tell("vouched", g, asked_at + seconds),
            on_dialled=lambda nodes: self._tell("dialled", *nodes),
            on_silence=self._silence,
            on_tried=self._tried,
            complain=lambda text: self._tell("complaint", text),
            on_wait=lambda node, told: self._tell("waits", node, told.text, *told.left),
        )
        self.links.secret(secret)

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        if what[0] == "proof":
            self._proofs.append(what)
        self.at.append(time.monotonic())
        self._news.set()

    def _grants(self, node: str, g: int) -> float:
        self._tell("asked", node, g)
        return self.grant_s

    def _silence(self, peers: Mapping[str, SilentPeer], held_up_at: float, heard: frozenset[str]) -> None:
        if held_up_at > self._held_up_at:
            self._held_up_at = held_up_at
            self._tell("held up")
        before, self._silent = self._silent, frozenset(peers)
        self.ever_silent |= self._silent
        self.heard_again |= heard
        for node in sorted(before ^ self._silent):
            self._tell("silent" if node in self._silent else "not silent", node)

    def _tried(self, answer: PeerTried) -> None:
        self.tried.append(answer)
        self._tell("tried", answer.number)

    async def until(self, *what: object) -> float:
        """Wait until this is told, forget what was told before, and say when it was."""
        while True:
            for index, told in enumerate(self.told):
                if told[: len(what)] == what:
                    at, self.last = self.at[index], told
                    if told in self._proofs:
                        self._proofs.remove(told)
                    del self.told[: index + 1], self.at[: index + 1]
                    return at
            self._news.clear()
            await self._news.wait()

    def proofs(self) -> list[tuple[object, ...]]:
        """Every proof that nobody waited for, also one that came before something that was waited for."""
        return self._proofs


async def proves_nothing(node: Watching, refuses: str, third: PeerListener) -> None:
    """`node` is refused by one that it is to watch, and hears another a few times: there was time for a proof."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        refused = LinkTarget("127.0.0.1", held.getsockname()[1], 5)
        node.links.watch({refuses: refused, "n-2": at(third)})
        await node.until("up", "n-2")
        for number in range(5):
            node.links.ask(number)
            await node.until("answered", number, "n-2")
    assert node.proofs() == []


@contextlib.asynccontextmanager
async def watching(node: str = "w-1", secret: str = SECRET) -> AsyncIterator[Watching]:
    made = Watching(node, secret)
    try:
        yield made
    finally:
        made.links.close()


class Peer:
    """A process that is watched."""

    def __init__(self, process: asyncio.subprocess.Process, host: str, port: int) -> None:
        self.process = process
        self.target = LinkTarget(host, port, 5)

    async def order(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words.encode() + b"\n")
        await self.process.stdin.drain()

    async def said(self, word: str) -> list[str]:
        """The next line that begins so."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode().split():
            if line[0] == word:
                return line[1:]
        raise AssertionError("it has ended")

    def kill(self) -> None:
        self.process.kill()


@contextlib.asynccontextmanager
async def peer(node: str = "n-1", host: str = "127.0.0.1", port: int = 0, secret: str = SECRET) -> AsyncIterator[Peer]:
    command = [sys.executable, "-m", "tests.scripts.link_peer", host, str(port), node, secret]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    made = Peer(process, host, port)
    try:
        made.target = LinkTarget(host, int((await made.said("port"))[0]), 5)
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def listening(
    node: str = "n-1", secret: str = SECRET, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Watching, PeerListener]]:
    """A node that is watched, in this process."""
    async with watching(node, secret) as made:
        agent = PeerListener(host, JOB, node)
        agent.hand_to(made.links.accept)
        try:
            yield made, agent
        finally:
            made.links.close()
            agent.close()


async def nowhere(node: str) -> LinkTarget | None:
    """The store says of no node where it listens."""
    return None


def at(agent: PeerListener, revision: int = 5) -> LinkTarget:
    """Where an agent of this process listens."""
    return LinkTarget("127.0.0.1", agent.port, revision)
