"""The agent's listener and the question to it, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from elastic.core.model import Member
from launcher.peers import reachability
from launcher.peers.listener import PeerListener
from launcher.wire.link_messages import Greeting

LIMIT_S = 30.0
FLOOD = 600


def played(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await story()

    asyncio.run(limited())


@contextlib.asynccontextmanager
async def listening(host: str = "127.0.0.1", node: str = "n-1") -> AsyncIterator[PeerListener]:
    made = PeerListener(host, "j1", node)
    try:
        yield made
    finally:
        made.close()


@contextlib.asynccontextmanager
async def stranger(said: bytes | None) -> AsyncIterator[int]:
    """Something else that listens; with None it never says a word. The port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if said is None:
                await reader.read()
            else:
                writer.write(said)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def member(port: int, host: str = "127.0.0.1") -> Member:
    return Member(host=host, slots=1, masters=(7000,), ports=(8000,), link=port)


def test_whoever_connects_is_told_the_job_and_the_node() -> None:
    async def story() -> None:
        async with listening() as agent:
            assert await reachability.ask_greeting("127.0.0.1", agent.port) == Greeting("j1", "n-1")

    played(story)


def test_a_node_of_the_loopback_listens_there_alone_and_another_one_everywhere() -> None:
    async def story() -> None:
        async with listening("127.0.0.1") as local, listening("203.0.113.9") as open_:
            assert local.address == "127.0.0.1"
            assert open_.address in ("::", "0.0.0.0")
            assert await reachability.ask_greeting("127.0.0.1", open_.port) == Greeting("j1", "n-1")

    played(story)


def test_after_its_end_nobody_listens() -> None:
    async def story() -> None:
        async with listening() as agent:
            port = agent.port
        with pytest.raises(ConnectionRefusedError):
            await reachability.ask_greeting("127.0.0.1", port)

    played(story)


def test_a_flood_of_connections_is_answered_and_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachability, "ASK_LIMIT_S", LIMIT_S)  # A hundred clients and the agent share one loop here.

    async def story() -> None:
        async with listening() as agent:
            before = len(os.listdir("/proc/self/fd"))
            gate = asyncio.Semaphore(100)

            async def one() -> Greeting:
                async with gate:
                    return await reachability.ask_greeting("127.0.0.1", agent.port)

            said = await asyncio.gather(*(one() for _ in range(FLOOD)))
            assert set(said) == {Greeting("j1", "n-1")}
            assert len(os.listdir("/proc/self/fd")) <= before

    played(story)


def test_garbage_and_clients_that_vanish_or_stay_do_no_harm() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        async with listening() as agent:
            stays = []
            for _ in range(50):
                made = socket.socket()
                made.setblocking(False)
                await loop.sock_connect(made, ("127.0.0.1", agent.port))
                with contextlib.suppress(ConnectionError):
                    await loop.sock_sendall(made, os.urandom(1 << 16))
                stays.append(made)
            for made in stays[:25]:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                made.close()
            assert await reachability.ask_greeting("127.0.0.1", agent.port) == Greeting("j1", "n-1")
            for made in stays[25:]:
                made.close()

    played(story)


# Who is reached


def why(node: str, found: Member) -> str:
    """Why this member is not reached."""
    said: list[str] = []

    async def story() -> None:
        said.append(await reachability.unreachable_reason("j1", node, found))

    played(story)
    return said[0]


def test_a_member_that_answers_with_its_own_name_is_reached() -> None:
    async def story() -> None:
        async with listening(node="n-1") as agent:
            assert await reachability.unreachable_reason("j1", "n-1", member(agent.port)) == ""
            assert "n-1 of job j1" in await reachability.unreachable_reason("j1", "n-2", member(agent.port))
            assert "another node answers there" in await reachability.unreachable_reason(
                "j2", "n-1", member(agent.port)
            )

    played(story)


@pytest.mark.parametrize(
    "said",
    [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"elastic-launch 1\n", b"elastic-launch 2 j1 n-1\n", b"\xff" * 5000, b"x" * 50],
)
def test_something_else_that_answers_is_not_taken_for_the_member(said: bytes) -> None:
    async def story() -> None:
        async with stranger(said) as port:
            assert "is not elastic-launch" in await reachability.unreachable_reason("j1", "n-1", member(port))

    played(story)


def test_who_refuses_says_nothing_or_has_an_unknown_name_is_not_reached_and_the_reason_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachability, "ASK_LIMIT_S", 0.2)

    async def story() -> None:
        async with stranger(None) as port:
            assert "no answer within" in await reachability.unreachable_reason("j1", "n-1", member(port))

    played(story)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert why("n-1", member(bound.getsockname()[1])).startswith("refused")
    assert why("n-1", member(0)) == "its agent has no open port"
    assert why("n-1", member(9, "no-such-host.invalid")).startswith(
        "this host cannot resolve the name no-such-host.invalid"
    )


def test_a_name_with_several_addresses_is_reached_if_one_of_them_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    known = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("127.0.0.9", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **more: known)

    async def story() -> None:
        async with listening() as agent:
            assert await reachability.ask_greeting("a-name", agent.port) == Greeting("j1", "n-1")

    played(story)


def test_a_resolver_that_is_away_holds_nobody_back_at_the_end() -> None:
    code = (
        "import asyncio, socket, threading\n"
        "from launcher.peers import reachability\n"
        "socket.getaddrinfo = lambda *words, **more: threading.Event().wait()\n"
        "reachability.ASK_LIMIT_S = 0.1\n"
        "try:\n    asyncio.run(reachability.ask_greeting('a-name', 1))\nexcept TimeoutError:\n    print('no answer')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert (ran.stdout, ran.stderr) == ("no answer\n", "")


def test_all_members_are_counted_also_those_that_there_was_no_time_for() -> None:
    async def story() -> None:
        async with listening(node="n-1") as agent, stranger(None) as silent:
            members = {"n-1": member(agent.port), "n-2": member(silent), "n-3": member(0)}
            found = await reachability.check_reachable("j1", members, limit_s=1.0)
            assert (found.reached, found.untried) == (1, 1)
            assert [one.node for one in found.unreached] == ["n-3"]

    played(story)


def test_no_more_than_64_are_tried_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most = 0, 0

    async def slow(job_id: str, node: str, member: Member) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return "x" * 1000

    monkeypatch.setattr(reachability, "unreachable_reason", slow)

    async def story() -> None:
        found = await reachability.check_reachable("j1", {f"n-{number}": member(1) for number in range(1500)})
        assert len(found.unreached) == 1000
        assert len(found.unreached[0].why) == 300

    played(story)
    assert most == 64
