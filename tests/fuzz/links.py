"""Links: who connects to an agent, or answers where an agent connects, can say anything and becomes nobody's link."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any

from elastic.core.agent.actions import LinkTarget
from launcher.net.lines import LineSplitter, LineTooLong
from launcher.peers.core_adapter import HeardWait
from launcher.peers.links import PeerLinks
from launcher.wire import link_messages
from launcher.wire.link_messages import (
    Admitted,
    Bye,
    Greeting,
    Heartbeat,
    LinkError,
    LinkRequest,
    Ping,
    Pong,
    Proof,
    Tried,
    Try,
    Vouch,
    VouchGranted,
    WaitTold,
)
from tests.fuzz.target import Target

SECRET = "the secret of the job"
NONCE = "0123456789abcdef" * 2
LISTENER = Greeting("j1", "h-0001", NONCE)
PIECE = 700


def lines(data: bytes) -> None:
    """What is said over a link is a line that means something, or the end of the connection."""
    cut = LineSplitter()
    with contextlib.suppress(LineTooLong):
        for start in range(0, len(data), PIECE):
            for line in cut.feed(data[start : start + PIECE]):
                with contextlib.suppress(LinkError):
                    link_messages.read_greeting(line)
                with contextlib.suppress(LinkError):
                    message = link_messages.decode(line)
                    assert link_messages.decode(link_messages.encode(message).removesuffix(b"\n")) == message
                    if isinstance(message, WaitTold):
                        HeardWait.of("h-0001", message, 100.0).reason_at(141.0)
                    if isinstance(message, LinkRequest):
                        link_messages.proofs(SECRET, LISTENER, message)


class Loop:
    """A loop in which nothing may go wrong unheard."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.loop = self.runner.get_loop()
        self.wrong: list[dict[str, object]] = []
        self.loop.set_exception_handler(lambda loop, context: self.wrong.append(context))


_loop: list[Loop] = []


def loop() -> Loop:
    """One for all inputs: a new one for each costs more than what is tested."""
    if not _loop:
        _loop.append(Loop())
        atexit.register(_loop[0].runner.close)
    return _loop[0]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over the loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        return listener.accept()[0], theirs


async def rounds(count: int = 6) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def door(data: bytes) -> None:
    """A stranger who says this to a listening agent is sent away, and has no link."""

    async def story() -> None:
        heard: list[object] = []
        one = PeerLinks(
            "j1",
            "h-0001",
            on_change=heard.append,
            on_proof=lambda node, revision, host, at: heard.append(node),
            on_answered=lambda number, nodes: heard.append(nodes),
            grants=lambda node, g: 7.0,
            on_vouched=lambda node, g, asked_at, seconds: heard.append(node),
            on_dialled=heard.append,
            on_silence=lambda peers, *_: heard.append(peers),
            on_tried=heard.append,
            complain=lambda text: None,
            on_wait=lambda node, message: heard.append(message),
        )
        one.secret(SECRET)
        ours, theirs = tcp_pair()
        ours.setblocking(False)
        one.accept(ours)
        with theirs:
            theirs.setblocking(False)
            with contextlib.suppress(OSError):
                theirs.send(data)
                await rounds()
                theirs.shutdown(socket.SHUT_WR)
            await rounds()
        assert not one.watchers
        assert not one._trials
        assert not heard
        one.close()

    run(story())


def dialler(data: bytes) -> None:
    """What answers where an agent dials is no link, whatever it says: nobody says the proof of an agent by chance."""

    async def story() -> None:
        told: list[object] = []
        links = PeerLinks(
            "j1",
            "w-0001",
            on_change=lambda nodes: told.append(nodes),
            on_proof=lambda node, revision, host, at: told.append((node, revision)),
            on_answered=lambda number, nodes: None,
            grants=lambda node, g: 7.0,
            on_vouched=lambda node, g, asked_at, seconds: told.append((g, seconds)),
            on_dialled=lambda nodes: None,
            on_silence=lambda peers, *_: told.append(peers),
            on_tried=told.append,
            complain=lambda text: None,
        )
        links.secret(SECRET)
        listener = socket.socket()
        with listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            listener.setblocking(False)
            links.watch({"h-0001": LinkTarget("127.0.0.1", listener.getsockname()[1], 5)})
            connected, _ = await asyncio.get_running_loop().sock_accept(listener)
            with connected:
                connected.setblocking(False)
                with contextlib.suppress(OSError):
                    connected.send(data)
                await rounds(10)
        links.close()
        await rounds()
        assert not told

    run(story())


def run(story: Coroutine[Any, Any, None]) -> None:
    it = loop()
    it.runner.run(story)
    assert not it.wrong, it.wrong.pop()


WAIT = link_messages.wait_told("TRAINING", "c joins in \ufffc", [41.0])
REQUEST = LinkRequest("w-0001", NONCE)
SAID = b"".join(
    link_messages.encode(message)
    for message in (
        REQUEST,
        Proof("0" * 64),
        Admitted(),
        Heartbeat(0.25),
        Ping(1),
        Pong(1),
        Try(1, "n-0002", "127.0.0.1", 1, 0.25),
        Tried(1, True),
        Vouch(1, 2),
        VouchGranted(1, 2, 3.0),
        WAIT,
        Bye(),
    )
)
GREETING = link_messages.greeting_line(LISTENER)
OLD = link_messages.greeting_line(Greeting("j1", "h-0001"))
TARGETS = (
    Target("link lines", lines, (SAID, GREETING + SAID, OLD)),
    Target("link listener", door, (SAID, link_messages.encode(REQUEST) + SAID)),
    Target("link dialler", dialler, (GREETING + link_messages.encode(Proof("0" * 64)) + SAID, OLD, GREETING + SAID)),
)
