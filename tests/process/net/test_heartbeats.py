"""Heartbeats between real processes, and which of them are silent."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from elastic.auth.handshake import new_nonce
from elastic.core.agent.actions import LinkTarget, SetHeartbeats, WatchLinks
from elastic.core.agent.events import Event, SilenceChanged
from elastic.core.agent.links.silence import BEATS_MIN
from elastic.core.view import StoredDocument
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.peers.core_adapter import LinkAdapter
from launcher.peers.heartbeats import Heartbeats
from launcher.peers.listener import PeerListener
from launcher.peers.silence_detector import NEVER
from launcher.wire import link_messages
from launcher.wire.link_messages import Admitted, Greeting, Heartbeat, LinkRequest, Proof
from tests.scripts.link_peer import JOB
from tests.support.agent_harness import Bench
from tests.support.link_harness import SECRET, Peer, Watching, at, listening, nowhere, peer, played, watching
from tests.support.link_strangers import Stranger, connected

EVERY_S, TIMEOUT_S = 0.05, 0.2
UNREACHED = LinkTarget("127.0.0.1", 1, 5)
"""Nobody listens there."""


class Beats:
    """The heartbeats that a node hears, as they come."""

    def __init__(self) -> None:
        self._came = asyncio.Semaphore(0)
        self.count = 0

    def came(self) -> None:
        self.count += 1
        self._came.release()

    async def hears(self, count: int) -> None:
        """Wait for so many."""
        for _ in range(count):
            await self._came.acquire()


@contextlib.contextmanager
def beats(node: Watching) -> Iterator[Beats]:
    heard, beat = Beats(), node.links.heartbeats.beat

    def hear(name: str, link: object, every_s: float) -> None:
        beat(name, link, every_s)
        heard.came()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node.links.heartbeats, "beat", hear)
        yield heard


def watches(node: Watching, leader: str) -> None:
    """The node watches a leader, which it does not reach yet."""
    node.links.watch({leader: UNREACHED})


@contextlib.asynccontextmanager
async def led() -> AsyncIterator[tuple[Watching, Stranger]]:
    """A node, and the leader `w-2`, which has a link to it."""
    async with listening("n-1") as (node, agent), connected(agent) as leader:
        await leader.prove("w-2")
        await leader.line()
        yield node, leader


async def is_answered(watcher: Watching, node: str = "n-1") -> None:
    """What was said before was read."""
    watcher.links.ask(99)
    await watcher.until("answered", 99, node)


def test_each_heartbeat_is_answered_with_one_and_that_one_is_not() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1") as (watched, agent):
            watches(watched, "w-1")
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            with beats(watcher) as answers, beats(watched) as sent:
                watcher.links.heartbeats.set(EVERY_S, 0.0)
                await answers.hears(5)
                watcher.links.heartbeats.set(0.0, 0.0)
                await is_answered(watcher)
                assert answers.count == sent.count >= 5

    played(story)


def test_a_heartbeat_that_is_answered_carries_the_interval_back() -> None:
    async def story() -> None:
        async with led() as (_, leader):
            leader.say(link_messages.encode(Heartbeat(12.5)))
            assert link_messages.decode(await leader.line()) == Heartbeat(12.5)

    played(story)


def test_heartbeats_of_a_leader_that_does_not_hear_the_node_do_not_count() -> None:
    async def story() -> None:
        async with led() as (node, leader):
            watches(node, "w-2")
            node.links.heartbeats.set(0.0, TIMEOUT_S)

            async def is_answered_to(heartbeat: Heartbeat) -> None:
                leader.say(link_messages.encode(heartbeat))
                assert link_messages.decode(await leader.line()) == Heartbeat(EVERY_S)

            for _ in range(BEATS_MIN):
                await is_answered_to(Heartbeat(EVERY_S))
            silent = asyncio.create_task(node.until("silent", "w-2"))
            while not silent.done():
                await is_answered_to(Heartbeat(EVERY_S, unheard=True))
            await is_answered_to(Heartbeat(EVERY_S))
            await node.until("not silent", "w-2")

    played(story)


def test_a_leader_tells_a_node_that_it_does_not_hear_it_until_it_hears_it_again() -> None:
    async def story() -> None:
        async with watching("leader") as leader, AnsweringNode().listening() as node:
            leader.links.watch({"n-1": LinkTarget("127.0.0.1", node.port, 5)})
            await leader.until("up", "n-1")
            leader.links.heartbeats.set(EVERY_S, TIMEOUT_S)
            for _ in range(BEATS_MIN):
                assert await node.hears() == Heartbeat(EVERY_S)
                node.answers(Heartbeat(EVERY_S))
            while not (await node.hears()).unheard:
                pass
            assert leader.ever_silent == {"n-1"}
            node.answers(Heartbeat(EVERY_S))
            while (await node.hears()).unheard:
                pass

    played(story)


@contextlib.contextmanager
def never_held_up(heartbeats: Heartbeats) -> Iterator[None]:
    """No stall of this process restarts a silence."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(heartbeats._detector, "expect_check", lambda at, slack_s: None)
        yield


class AnsweringNode:
    """A node `n-1` that takes one link, and answers the heartbeats that the test has it answer."""

    def __init__(self) -> None:
        self.port = 0
        self._heard: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None
        self._ended = asyncio.Event()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[AnsweringNode]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            if self._writer is not None:
                self._writer.transport.abort()
                await self._ended.wait()

    async def hears(self) -> Heartbeat:
        """The next heartbeat."""
        heartbeat = link_messages.decode(await self._heard.get())
        assert isinstance(heartbeat, Heartbeat)
        return heartbeat

    def answers(self, heartbeat: Heartbeat) -> None:
        assert self._writer is not None
        self._writer.write(link_messages.encode(heartbeat))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, greeting = writer, Greeting(JOB, "n-1", new_nonce())
        writer.write(link_messages.greeting_line(greeting))
        request = link_messages.decode((await reader.readline()).removesuffix(b"\n"))
        assert isinstance(request, LinkRequest)
        writer.write(link_messages.encode(Proof(link_messages.proofs(SECRET, greeting, request).server)))
        await reader.readline()  # The proof of the leader.
        writer.write(link_messages.encode(Admitted()))
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self._heard.put_nowait(line.removesuffix(b"\n"))
        self._ended.set()


def test_a_node_that_has_not_answered_the_first_heartbeats_over_its_link_is_unheard() -> None:
    async def story() -> None:
        async with watching("leader") as leader, AnsweringNode().listening() as node:
            leader.links.watch({"n-1": LinkTarget("127.0.0.1", node.port, 5)})
            await leader.until("up", "n-1")
            leader.links.heartbeats.set(EVERY_S, TIMEOUT_S)
            await node.hears()
            while not leader.links.heartbeats.unheard():
                assert await node.hears() == Heartbeat(EVERY_S)
            assert leader.links.heartbeats.unheard() == {"n-1"}
            with beats(leader) as answers:
                while leader.links.heartbeats.unheard():
                    node.answers(Heartbeat(EVERY_S))
                    await answers.hears(1)
            assert not leader.ever_silent

    played(story)


@contextlib.asynccontextmanager
async def suspended() -> AsyncIterator[tuple[Watching, Peer]]:
    """A watcher, and a node `n-1` that is suspended and silent to it."""
    async with watching() as watcher, peer("n-1") as node:
        watcher.links.watch({"n-1": node.target})
        await watcher.until("up", "n-1")
        with never_held_up(watcher.links.heartbeats):
            with beats(watcher) as answers:
                watcher.links.heartbeats.set(EVERY_S, TIMEOUT_S)
                await answers.hears(3)
            os.kill(node.process.pid, signal.SIGSTOP)
            await watcher.until("silent", "n-1")
            yield watcher, node


def test_a_node_whose_process_is_suspended_is_silent_for_its_watcher_until_it_resumes() -> None:
    async def story() -> None:
        async with suspended() as (watcher, node):
            os.kill(node.process.pid, signal.SIGCONT)
            await watcher.until("not silent", "n-1")
            assert watcher.heard_again == {"n-1"}
            assert not watcher.proofs()

    played(story)


def test_a_leader_whose_process_is_suspended_is_silent_for_a_node_that_it_watches() -> None:
    async def story() -> None:
        async with listening("n-1") as (node, agent), peer("leader") as leader:
            watches(node, "leader")
            node.links.heartbeats.set(0.0, TIMEOUT_S)
            with beats(node) as sent:
                await leader.order(f"watch n-1 127.0.0.1 {agent.port}")
                await leader.order(f"beat {EVERY_S}")
                await sent.hears(3)
                os.kill(leader.process.pid, signal.SIGSTOP)
                await node.until("silent", "leader")
                os.kill(leader.process.pid, signal.SIGCONT)
                await node.until("not silent", "leader")

    played(story)


def test_a_leader_that_sends_no_more_heartbeats_and_closes_its_link_in_order_is_not_silent() -> None:
    async def story() -> None:
        async with watching() as leader, peer("next") as next_leader, listening("n-1") as (node, agent):
            leader.links.watch({"n-1": at(agent)})
            await leader.until("up", "n-1")
            watches(node, "w-1")
            node.links.heartbeats.set(0.0, TIMEOUT_S)
            with beats(node) as sent:
                leader.links.heartbeats.set(EVERY_S, 0.0)
                await sent.hears(3)
            leader.links.watch({})
            await node.until("dialled")
            while node.last != ("dialled",):
                await node.until("dialled")
            watches(node, "next")
            with beats(node) as sent:
                await next_leader.order(f"watch n-1 127.0.0.1 {agent.port}")
                await next_leader.order(f"beat {EVERY_S}")
                await sent.hears(3)
            os.kill(next_leader.process.pid, signal.SIGSTOP)
            await node.until("silent", "next")
            assert node.ever_silent == {"next"}, "and not the first, which has sent nothing for longer"
            assert "w-1" not in node.links.heartbeats.unheard()

    played(story)


async def beat(leader: Stranger) -> None:
    """A leader sends a heartbeat and gets the answer."""
    leader.say(link_messages.encode(Heartbeat(EVERY_S)))
    assert link_messages.decode(await leader.line()) == Heartbeat(EVERY_S)


def test_a_silent_leader_is_forgotten_by_a_node_that_watches_it_no_more() -> None:
    async def story() -> None:
        async with led() as (node, leader):
            watches(node, "w-2")
            node.links.heartbeats.set(0.0, TIMEOUT_S)
            for _ in range(BEATS_MIN):
                await beat(leader)
            await node.until("silent", "w-2")
            watches(node, "w-3")
            assert not node.links.heartbeats.is_silent("w-2")

    played(story)


def test_heartbeats_of_a_former_leader_that_does_not_know_yet_that_it_leads_no_more_do_not_count() -> None:
    async def story() -> None:
        async with listening("n-1") as (node, agent), connected(agent) as former, connected(agent) as leader:
            watches(node, "w-3")
            node.links.heartbeats.set(0.0, TIMEOUT_S)
            for one, name in ((former, "w-2"), (leader, "w-3")):
                await one.prove(name)
                await one.line()
                for _ in range(BEATS_MIN):
                    await beat(one)
            await node.until("silent", "w-3")
            assert node.ever_silent == {"w-3"}, "although the former leader was heard before it"

    played(story)


def test_a_silent_node_whose_process_is_killed_is_proven_dead() -> None:
    async def story() -> None:
        async with suspended() as (watcher, node):
            node.kill()
            await watcher.until("proof", "n-1")

    played(story)


def test_the_core_hears_of_a_silent_node_and_that_it_was_heard_again() -> None:
    async def story() -> None:
        hello, events, facts = PeerListener("127.0.0.1", JOB, "n-1"), asyncio.Queue[Event](), Bench("n-1").facts
        adapter = LinkAdapter(hello, JOB, facts, events.put_nowait, AgentLog("n-1", Console(2)), find=nowhere)
        adapter.learn(dataclasses.replace(facts.view, secret=StoredDocument(SECRET, 1, 1)))

        async def silence() -> SilenceChanged:
            while not isinstance(event := await events.get(), SilenceChanged):
                pass
            return event

        async with connected(hello) as leader:
            await leader.prove("w-2")
            await leader.line()
            with never_held_up(adapter._links.heartbeats):
                adapter.perform(WatchLinks({"w-2": UNREACHED}))
                adapter.perform(SetHeartbeats(0.0, TIMEOUT_S))
                for _ in range(BEATS_MIN):
                    leader.say(link_messages.encode(Heartbeat(EVERY_S)))
                silent = await silence()
                assert (set(silent.peers), silent.heard) == ({"w-2"}, frozenset())
                leader.say(link_messages.encode(Heartbeat(EVERY_S)))
                assert await silence() == SilenceChanged({}, NEVER, frozenset({"w-2"}))
        adapter.close()
        hello.close()

    played(story)
