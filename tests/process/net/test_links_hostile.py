"""Links beside strangers: garbage, floods, slow words, recorded proofs, wrong secrets, and peers that do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator

import pytest

from elastic.core.agent.actions import LinkTarget
from launcher.peers import inbound_links, listener, peer_link, reachability
from launcher.peers.listener import PeerListener
from launcher.peers.peer_link import DialResult, PeerLink
from launcher.wire import link_messages
from launcher.wire.link_messages import (
    Admitted,
    Bye,
    Greeting,
    LinkRequest,
    Ping,
    Pong,
    Proof,
    VouchGranted,
    wait_told,
)
from tests.scripts.link_peer import JOB
from tests.support.descriptor_limit import none_left
from tests.support.link_harness import SECRET, Watching, at, listening, played, proves_nothing, watching
from tests.support.link_strangers import Stranger, connected, impostor


@contextlib.asynccontextmanager
async def linked() -> AsyncIterator[tuple[Watching, Watching, PeerListener]]:
    """One that watches, one that is watched and its listener; the link is up."""
    async with watching() as watcher, listening("n-1") as (other, agent):
        watcher.links.watch({"n-1": at(agent)})
        await watcher.until("up", "n-1")
        yield watcher, other, agent


@contextlib.contextmanager
def turns() -> Iterator[asyncio.Semaphore]:
    """It is released after each attempt to link a member."""
    tried, attempt = asyncio.Semaphore(0), PeerLink._try

    async def counted(one: PeerLink, address: str) -> DialResult:
        came = await attempt(one, address)
        tried.release()
        return came

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PeerLink, "_try", counted)
        yield tried


async def is_alive(watcher: Watching) -> None:
    """The link has not been touched, and answers."""
    assert not [told for told in watcher.told if told[0] in ("up", "proof")]
    watcher.links.ask(99)
    await watcher.until("answered", 99, "n-1")


# Strangers at the door


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"{}\n",
        b"GET / HTTP/1.1\r\n\r\n",
        os.urandom(1 << 16) + b"\n",
        b"x" * (1 << 20),
        b"[" * 1000 + b"\n",
        link_messages.encode(Ping(1)),
        link_messages.encode(VouchGranted(1, 1, 5.0)),
        link_messages.encode(wait_told("TRAINING", "nothing", ())),
        link_messages.encode(Proof("0" * 64)),
        link_messages.encode(LinkRequest("w-2", "0" * 32)) + link_messages.encode(Proof("0" * 64)),
        link_messages.encode(LinkRequest("w-2", "0" * 32)) * 2,
        link_messages.encode(LinkRequest("w-2", "0" * 32)) + link_messages.encode(Ping(1)),
        link_messages.encode(LinkRequest("n-1", "0" * 32)) + link_messages.encode(Proof("0" * 64)),
    ],
    ids=[
        "nothing",
        "empty",
        "http",
        "noise",
        "endless",
        "deep",
        "ping",
        "grant",
        "wait",
        "a proof first",
        "no proof",
        "twice",
        "ping later",
        "itself",
    ],
)
def test_who_says_something_else_than_a_proof_is_sent_away(data: bytes) -> None:
    async def story() -> None:
        async with linked() as (watcher, other, agent), connected(agent) as stranger:
            stranger.say(data)
            await stranger.is_closed()
            assert not other.links._inbound._unproven
            assert set(other.links._inbound.links) == {"w-1"}
            await is_alive(watcher)

    played(story)


def test_a_proof_that_was_recorded_proves_nothing_later() -> None:
    async def story() -> None:
        async with linked() as (watcher, other, agent):
            async with connected(agent) as recorded:
                said = await recorded.prove()
                assert isinstance(link_messages.decode(await recorded.line()), Admitted)
                recorded.say(link_messages.encode(Ping(3)))
                assert link_messages.decode(await recorded.line()) == Pong(3)
            async with connected(agent) as replay:
                replay.say(said)
                await replay.greeted()
                assert isinstance(link_messages.decode(await replay.line()), Proof)
                assert await replay.line() == b""
            await is_alive(watcher)
            await other.until("complaint")

    played(story)


def test_of_two_links_of_one_node_the_newer_counts() -> None:
    async def story() -> None:
        async with listening("n-1") as (watched, agent), connected(agent) as old, connected(agent) as new:
            await old.prove()
            await old.line()
            await new.prove()
            await new.line()
            assert await old.line() == b""
            watched.links.ask_vouch(4)
            vouch = link_messages.decode(await new.line())
            assert isinstance(vouch, link_messages.Vouch)
            new.say(link_messages.encode(VouchGranted(vouch.n, 5, 9.0)))  # for another generation
            new.say(link_messages.encode(VouchGranted(vouch.n + 1, 4, 9.0)))  # to another question
            new.say(link_messages.encode(VouchGranted(vouch.n, 4, 8.0)))
            await watched.until("vouched")
            assert watched.last[1] == 4
            assert list(watched.links._inbound.links) == ["w-2"]

    played(story)


def test_a_flood_of_connections_drops_its_own_and_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "ASK_LIMIT_S", 60.0)  # All of it shares one loop here.

    async def story() -> None:
        async with linked() as (watcher, other, agent), contextlib.AsyncExitStack() as stack:
            crowd = [await stack.enter_async_context(connected(agent)) for _ in range(3 * inbound_links.UNPROVEN_MAX)]
            for one in crowd:
                await one.greeted()
            assert len(other.links._inbound._unproven) == inbound_links.UNPROVEN_MAX
            assert await crowd[0].line() == b""
            assert await reachability.ask_greeting("127.0.0.1", agent.port) == Greeting(JOB, "n-1")
            async with connected(agent) as late:
                await late.prove()
                assert isinstance(link_messages.decode(await late.line()), Admitted)
            await is_alive(watcher)

    played(story)


def test_a_flood_from_one_address_drops_nobody_from_another() -> None:
    async def story() -> None:
        async with listening("n-1", host="203.0.113.9") as (_, agent), contextlib.AsyncExitStack() as stack:
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port, local_addr=("127.0.0.2", 0))
            early = Stranger(reader, writer)
            greeting = await early.greeted()
            for _ in range(2 * inbound_links.UNPROVEN_MAX):
                await (await stack.enter_async_context(connected(agent))).greeted()
            await early.prove("w-2", greeting=greeting)
            assert isinstance(link_messages.decode(await early.line()), Admitted)
            writer.transport.abort()

    played(story)


def test_who_is_slow_to_prove_itself_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_links, "PROOF_LIMIT_S", 0.2)

    async def story() -> None:
        async with linked() as (watcher, other, agent), connected(agent) as silent, connected(agent) as slow:
            await silent.greeted()
            slow.say(b'{"type":')
            await slow.is_closed()
            await silent.is_closed()
            assert not other.links._inbound._unproven
            await is_alive(watcher)

    played(story)


def test_who_resets_its_connections_does_no_harm() -> None:
    async def story() -> None:
        async with linked() as (watcher, _, agent):
            for number in range(50):
                made = socket.create_connection(("127.0.0.1", agent.port))
                if number % 2:
                    made.send(b"x")
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                made.close()
            async with connected(agent) as last:
                await last.greeted()
            await is_alive(watcher)

    played(story)


def test_without_descriptors_nothing_is_lost_but_new_connections() -> None:
    async def story() -> None:
        with pytest.MonkeyPatch.context() as patched, socket.socket() as made:
            patched.setattr(listener, "PAUSE_S", 0.05)
            made.setblocking(False)
            async with linked() as (watcher, _, agent):
                with none_left():
                    with contextlib.suppress(BlockingIOError):
                        made.connect(("127.0.0.1", agent.port))
                    await is_alive(watcher)
                assert (await asyncio.get_running_loop().sock_recv(made, 100)).startswith(b"elastic-launch 4")
                await is_alive(watcher)

    played(story)


def test_a_peer_that_asks_and_does_not_read_is_dropped() -> None:
    async def story() -> None:
        async with linked() as (watcher, other, agent), connected(agent) as deaf:
            deaf.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await deaf.prove("w-2")
            await deaf.line()
            gone = asyncio.Event()
            inbound = other.links._inbound.links["w-2"]
            forget = other.links._inbound.remove

            def forgotten(one: inbound_links.InboundConnection, *, cut: bool) -> None:
                forget(one, cut=cut)
                if one is inbound:
                    gone.set()

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(other.links._inbound, "remove", forgotten)
                deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
                while not gone.is_set():
                    if not deaf.writer.transport.get_write_buffer_size():  # Faster, the loop only copies what waits.
                        deaf.say(link_messages.encode(Ping(1)) * 1000)
                    await asyncio.sleep(0)
            assert set(other.links._inbound.links) == {"w-1"}
            await is_alive(watcher)

    played(story)


# Strangers that are dialled


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"SSH-2.0-OpenSSH_9.2\r\n", b""),
        (b"x" * 5000, b""),
        (b"elastic-launch 1 j1 n-2\n", b""),
        (b"elastic-launch 4 j1 n-2 " + b"0" * 32 + b"\n", b"nonsense\n"),
        (b"elastic-launch 4 j1 n-2 " + b"0" * 32 + b"\n", link_messages.encode(Pong(1))),
        (b"elastic-launch 4 j1 n-9 " + b"0" * 32 + b"\n", b""),
        (b"elastic-launch 4 other n-2 " + b"0" * 32 + b"\n", b""),
    ],
)
def test_who_answers_and_does_not_prove_itself_makes_no_link_and_no_proof(first: bytes, then: bytes) -> None:
    async def story() -> None:
        async with linked() as (watcher, _, agent), impostor(first, then) as port:
            with turns() as tried:
                watcher.links.watch({"n-1": at(agent), "n-2": LinkTarget("127.0.0.1", port, 1)})
                await tried.acquire()
                await tried.acquire()
            await is_alive(watcher)
            assert not [told for told in watcher.told if told[0] == "complaint"]

    played(story)


def test_a_listener_without_the_secret_is_named_once() -> None:
    async def story() -> None:
        line = b"elastic-launch 4 j1 n-2 " + b"0" * 32 + b"\n"
        lie = link_messages.encode(Proof("0" * 64))
        async with linked() as (watcher, _, agent), impostor(line, lie) as port:
            watcher.links.watch({"n-1": at(agent), "n-2": LinkTarget("127.0.0.1", port, 1)})
            await watcher.until("complaint")
            assert "n-2" in str(watcher.last[1])
            await is_alive(watcher)

    played(story)


def test_nodes_with_different_secrets_make_no_link_and_the_one_that_dials_says_so() -> None:
    async def story() -> None:
        async with watching(secret="another") as watcher, listening("n-1") as (other, agent):
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("complaint")
            assert "n-1" in str(watcher.last[1])
            watcher.links.ask(1)
            await watcher.until("answered", 1)
            assert watcher.last == ("answered", 1)
            watcher.links.secret(SECRET)
            await watcher.until("up", "n-1")
            assert not [told for told in other.told if told[0] == "complaint"]

    played(story)


def test_an_impostor_in_the_place_of_a_listener_gets_no_proof() -> None:
    heard: list[bytes] = []
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(link_messages.greeting_line(Greeting(JOB, "n-1", "0" * 32)))
        heard.append(await reader.readline())
        writer.write(link_messages.encode(Proof("0" * 64)))
        heard.append(await reader.read())
        ended.set()
        writer.close()

    async def story() -> None:
        async with watching() as watcher:
            server = await asyncio.start_server(answer, "127.0.0.1", 0)
            watcher.links.watch({"n-1": LinkTarget("127.0.0.1", server.sockets[0].getsockname()[1], 1)})
            await watcher.until("complaint")
            await ended.wait()
            server.close()

    played(story)
    assert isinstance(link_messages.decode(heard[0].removesuffix(b"\n")), LinkRequest)
    assert heard[1] == b""


def test_complaints_are_few_however_many_names_a_stranger_invents() -> None:
    async def story() -> None:
        async with listening("n-1") as (other, agent):
            for number in range(50):
                async with connected(agent) as stranger:
                    await stranger.prove(f"x-{number}", "a wrong secret")
                    await stranger.is_closed()
            assert len([told for told in other.told if told[0] == "complaint"]) == 32

    played(story)


def test_without_a_secret_there_are_greetings_and_no_links() -> None:
    async def story() -> None:
        async with watching() as watcher, listening("n-1", secret="") as (other, agent):
            async with connected(agent) as stranger:
                assert await stranger.greeted() == Greeting(JOB, "n-1", None)
                assert await stranger.line() == b""
            watcher.links.watch({"n-1": at(agent)})
            other.links.secret(SECRET)
            await watcher.until("up", "n-1")
            other.links.secret(None)
            await watcher.until("up")
            other.links.secret("another for both")
            watcher.links.secret("another for both")
            await watcher.until("up", "n-1")
            assert not watcher.proofs()

    played(story)


def test_who_is_closed_before_it_was_proven_gives_no_proof_of_a_death() -> None:
    async def story() -> None:
        async with watching() as watcher:
            with turns() as tried:
                async with impostor(b"elastic-launch 4 j1 n-1 " + b"0" * 32 + b"\n", b"{") as port:
                    watcher.links.watch({"n-1": LinkTarget("127.0.0.1", port, 1)})
                    await tried.acquire()
                await tried.acquire()  # Now it is refused.
                await tried.acquire()
            assert not watcher.told

    played(story)


def test_a_link_that_was_cut_long_ago_is_no_proof_after_one_that_ended_in_order() -> None:
    async def story() -> None:
        async with listening("n-1") as (node, agent), listening("n-2") as (_, third):
            async with connected(agent) as cut:
                await cut.prove("w-1")
                await cut.line()
            async with connected(agent) as again:
                await again.prove("w-1")
                await again.line()
                again.say(link_messages.encode(Bye()))
                await again.is_closed()
            await proves_nothing(node, "w-1", third)

    played(story)


def test_messages_have_the_words_that_are_documented() -> None:
    assert json.loads(link_messages.encode(Ping(3))) == {"type": "ping", "n": 3}


def test_who_cannot_be_dialled_is_named_once_with_the_address_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "LINK_PATIENCE_S", 0.3)

    async def story() -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))  # It does not listen.
            port = held.getsockname()[1]
            async with watching() as watcher:
                watcher.links.watch({"n-1": LinkTarget("127.0.0.1", port, 5)})
                await watcher.until("complaint")
                assert watcher.last[1] == (
                    f"n-1: no connection to its agent at 127.0.0.1:{port} (connection refused); it has exited or a "
                    "firewall is in the way; its failure would be detected only when its lease expires"
                )
                watcher.links.watch({})
                watcher.links.watch({"n-1": LinkTarget("127.0.0.1", port, 6), "n-2": LinkTarget("127.0.0.1", port, 7)})
                await watcher.until("complaint", str(watcher.last[1]).replace("n-1", "n-2"))
                assert not watcher.told

    played(story)


def test_who_was_linked_is_not_said_to_be_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_link, "LINK_PATIENCE_S", 0.3)

    async def story() -> None:
        async with listening() as (_, agent), watching() as watcher:
            watcher.links.watch({"n-1": at(agent)})
            await watcher.until("up", "n-1")
            watcher.links.watch({"n-1": at(agent), "n-2": LinkTarget("127.0.0.1", 1, 5)})
            await watcher.until("complaint")
            assert str(watcher.last[1]).startswith("n-2")
            assert not watcher.told

    played(story)


def test_the_names_of_links_that_were_cut_are_few_however_many_a_peer_invents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbound_links, "CUT_MAX", 4)

    async def story() -> None:
        async with listening("n-1") as (node, agent):
            for number in range(6):
                async with connected(agent) as cut:
                    await cut.prove(f"x-{number}")
                    await node.until("dialled", f"x-{number}")
                await node.until("dialled")
            assert list(node.links._inbound.cut) == [f"x-{number}" for number in range(2, 6)]

    played(story)


def test_an_agent_is_told_who_has_a_link_to_it_and_can_close_it() -> None:
    async def story() -> None:
        async with linked() as (watcher, other, agent), connected(agent) as stranger:
            await stranger.prove("x-1")
            await other.until("dialled", "w-1", "x-1")
            other.links.close_inbound(["x-1", "nobody"])
            await stranger.is_closed()
            await other.until("dialled", "w-1")
            await is_alive(watcher)

    played(story)
