"""A connection to a name with several addresses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from elastic import _net

HERE = "127.0.0.1"
NO_WAY = "255.255.255.255"
"""The kernel lets nobody connect to every machine at once: the network is unreachable."""


@contextmanager
def silent(port: int) -> Iterator[str]:
    """An address at which packets for this port get no answer."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.2", port))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.2", port))
        yield "127.0.0.2"


async def reached(addresses: tuple[str, ...], port: int, context: ssl.SSLContext | None = None) -> str:
    """The address that was connected to, of a name that has these."""

    async def resolved(host: str) -> tuple[str, ...]:
        return addresses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_net, "resolved", resolved)
        _, writer = await _net.connected("a-name", port, context)
    peer: str = writer.get_extra_info("peername")[0]
    writer.close()
    await writer.wait_closed()
    return peer


@contextmanager
def refusing() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as held:
        held.bind((HERE, 0))
        yield held.getsockname()[1]


async def listening() -> tuple[asyncio.Server, int]:
    """Somebody who closes each connection, and his port."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), HERE, 0)
    return server, server.sockets[0].getsockname()[1]


def test_an_address_that_cannot_be_reached_gives_way_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_net, "TRY_LIMIT_MIN_S", 0.01)
    monkeypatch.setattr(_net, "TRIES_LIMIT_S", 0.01)

    async def run() -> None:
        server, port = await listening()
        with silent(port) as deaf:
            for other in (NO_WAY, "127.0.0.3", deaf):
                assert await reached((other, HERE), port) == HERE
            assert await reached((NO_WAY, deaf, "127.0.0.3", HERE), port) == HERE
        server.close()

    asyncio.run(run())


def test_what_the_last_address_does_is_the_answer() -> None:
    async def run() -> None:
        with refusing() as port:
            with pytest.raises(ConnectionRefusedError):
                await reached((NO_WAY, HERE), port)
            with pytest.raises(OSError, match="unreachable"):
                await reached((HERE, NO_WAY), port)

    asyncio.run(run())


def test_the_callers_limit_ends_the_attempt_at_any_address() -> None:
    async def run() -> None:
        with refusing() as port, silent(port) as deaf:
            for addresses in ((deaf, HERE), (HERE, deaf)):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reached(addresses, port), 0.01)

    asyncio.run(run())


def test_a_server_that_speaks_no_tls_is_not_passed_over_for_the_next_address() -> None:
    async def run() -> None:
        server, port = await listening()
        with pytest.raises(OSError, match=r"SSL|TLS|[Cc]onnection") as caught:
            await reached((HERE, NO_WAY), port, ssl.create_default_context())
        assert "unreachable" not in str(caught.value)
        server.close()

    asyncio.run(run())
