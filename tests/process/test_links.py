"""Links between real processes, on real sockets: who is up, who is dead, and what proves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from launcher.connecting import boottime
from launcher.hello import Hello
from launcher.links import Links, Target
from tests.process.linkpeer import JOB

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
        self._news = asyncio.Event()
        self.grant_s = 7.0
        self.links = Links(
            JOB,
            node,
            on_change=lambda nodes: self._tell("up", *sorted(nodes)),
            on_proof=lambda node, revision, host: self._tell("proof", node, revision, host),
            on_answered=lambda number, nodes: self._tell("answered", number, *sorted(nodes)),
            grants=self._grants,
            on_vouched=lambda g, until: self._tell("vouched", g, until),
            complain=lambda text: self._tell("complaint", text),
        )
        self.links.secret(secret)

    def _tell(self, *what: object) -> None:
        self.told.append(what)
        self.at.append(time.monotonic())
        self._news.set()

    def _grants(self, node: str, g: int) -> float:
        self._tell("asked", node, g)
        return self.grant_s

    async def until(self, *what: object) -> float:
        """Wait until this is told, forget what was told before, and say when it was."""
        while True:
            for index, told in enumerate(self.told):
                if told[: len(what)] == what:
                    at, self.last = self.at[index], told
                    del self.told[: index + 1], self.at[: index + 1]
                    return at
            self._news.clear()
            await self._news.wait()

    def proofs(self) -> list[tuple[object, ...]]:
        return [told for told in self.told if told[0] == "proof"]


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
        self.target = Target(host, port, 5)

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
    command = [sys.executable, "-m", "tests.process.linkpeer", host, str(port), node, secret]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    made = Peer(process, host, port)
    try:
        made.target = Target(host, int((await made.said("port"))[0]), 5)
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@contextlib.asynccontextmanager
async def listening(
    node: str = "n-1", secret: str = SECRET, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[Watching, Hello]]:
    """A node that is watched, in this process."""
    async with watching(node, secret) as made:
        agent = await Hello.listen(host, JOB, node)
        agent.hand_to(made.links.accept)
        try:
            yield made, agent
        finally:
            made.links.close()
            await agent.close()


# A death


def at(agent: Hello, revision: int = 5) -> Target:
    return Target("127.0.0.1", agent.port, revision)


def test_a_killed_process_is_proven_dead_each_of_thirty_times() -> None:
    took: list[float] = []

    async def once(watcher: Watching, number: int) -> None:
        node = f"n-{number}"
        async with peer(node) as one:
            target = one.target._replace(create_revision=number)
            watcher.links.watch({node: target})
            await watcher.until("up", node)
            killed_at = time.monotonic()
            one.kill()
            took.append(await watcher.until("proof", node, number, "127.0.0.1") - killed_at)

    async def story() -> None:
        async with watching() as watcher:
            for number in range(1, 31):
                await once(watcher, number)

    played(story)
    assert len(took) == 30
    print(f"kill to proof: median {statistics.median(took) * 1e3:.2f} ms, worst {max(took) * 1e3:.2f} ms")


def test_a_process_that_came_back_as_another_node_at_the_same_port_proves_the_death_of_the_first() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            async with listening("n-2") as (second, _):
                agent.hand_to(second.links.accept)  # The address leads to another node now.
                first.links._door.close()
                await watcher.until("up")
                await watcher.until("proof", "n-1", 5, "127.0.0.1")

    played(story)


# What proves nothing


def test_a_link_that_is_closed_by_a_process_that_lives_comes_back_without_a_proof() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (first, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            for _ in range(5):
                first.links._door.close()
                await watcher.until("up")
                await watcher.until("up", "n-1")
            assert not watcher.proofs()

    played(story)


def test_a_member_that_leaves_in_order_says_so_and_there_is_no_proof() -> None:
    async def story() -> None:
        async with watching() as watcher, peer() as one:
            watcher.links.watch({"n-1": one.target})
            await watcher.until("up", "n-1")
            await one.order("bye")
            await watcher.until("up")
            await one.process.wait()
            watcher.links.ask(1)
            await watcher.until("answered", 1)
            assert not watcher.proofs()

    played(story)


# Questions


def test_all_that_are_alive_answer_a_question() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (_, agent), listening("n-2") as (_, other):
            watcher.links.ask(1)
            await watcher.until("answered", 1)
            watcher.links.watch({"n-1": at(agent), "n-2": at(other)})
            await watcher.until("up", "n-1", "n-2")
            watcher.links.ask(2)
            watcher.links.ask(3)
            await watcher.until("answered", 2, "n-1", "n-2")
            await watcher.until("answered", 3, "n-1", "n-2")

    played(story)


def test_a_vouch_counts_from_the_time_of_the_question() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (asker, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            before = boottime()
            asker.links.ask_vouch(4)
            after = boottime()
            await asker.until("vouched", 4)
            until = asker.last[2]
            assert isinstance(until, float)
            assert before + 7.0 <= until <= after + 7.0
            assert ("asked", "n-1", 4) in watcher.told

    played(story)


def test_a_vouch_that_is_refused_is_not_told() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (asker, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            watcher.grant_s = 0.0
            asker.links.ask_vouch(5)
            await watcher.until("asked", "n-1", 5)
            watcher.grant_s = 1.0
            asker.links.ask_vouch(6)
            await asker.until("vouched")
            assert asker.last[1] == 6

    played(story)
