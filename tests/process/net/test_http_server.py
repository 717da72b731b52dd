"""The limits of the HTTP server that monitors and browsers reach, each beside a client that does not behave."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psutil
import pytest
from aiohttp import web

from launcher.net.http_server import LimitedServer, ServerLimits
from tests.support.awaited_events import played
from tests.support.connection_flood import HALF, crowd

LIMITS = ServerLimits(connections=8, header_s=30.0, answer_s=30.0, line_bytes=1000, field_bytes=1000, fields=10)
ASKS = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Served:
    """A server that answers at once, or to `/waits` when the test says so, or to `/lasts` for ever."""

    def __init__(self, limits: ServerLimits) -> None:
        self.complaints: list[str] = []
        self.answers = asyncio.Event()
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.server = LimitedServer(self._answer, limits, self.complaints.append, "an answer")
        self.port = self.server.listen("127.0.0.1", 0)[1]

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.put_nowait(request.path)
        try:
            if request.path == "/waits":
                await self.answers.wait()
            if request.path == "/lasts":
                self.server.keep_open(request)
                response = web.StreamResponse()
                await response.prepare(request)
                await response.write(b"begins")
                await self.answers.wait()
                await response.write(b"ends")
                return response
        except asyncio.CancelledError:
            self.cancelled.put_nowait(request.path)
            raise
        return web.Response(text="answer")

    async def asks(self, path: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask on a connection of its own, and wait until the handler has the request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(ASKS % path)
        assert await self.asked.get() == f"/{path.decode()}"
        return reader, writer

    async def answers_at_once(self) -> bool:
        reader, writer = await self.asks(b"")
        said = await ends(reader)
        writer.close()
        return said.endswith(b"answer")


@asynccontextmanager
async def serving(limits: ServerLimits = LIMITS) -> AsyncIterator[Served]:
    one = Served(limits)
    try:
        yield one
    finally:
        await one.server.close()
    assert one.complaints == []


async def ends(reader: asyncio.StreamReader) -> bytes:
    """All that comes to the end of the connection, whichever way it ends."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@played
async def test_a_connection_is_for_one_request_however_many_are_sent() -> None:
    async with serving() as one:
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(ASKS % b"" * 1000)
        assert (await ends(reader)).count(b"HTTP/1.1 200") <= 1
        assert one.asked.qsize() == 1
        writer.close()


@played
async def test_a_header_that_is_not_complete_in_time_ends_the_connection() -> None:
    async with (
        serving(LIMITS._replace(header_s=0.1)) as one,
        crowd(one.port, 3) as half,
        crowd(one.port, 3, b"") as mute,
    ):
        for made in (*half, *mute):
            try:
                assert await asyncio.get_running_loop().sock_recv(made, 1) == b""
            except ConnectionError:
                continue
        assert one.asked.empty()


@played
async def test_an_answer_that_is_not_complete_in_time_ends_the_connection_and_its_handler() -> None:
    async with serving(LIMITS._replace(answer_s=0.1)) as one:
        reader, writer = await one.asks(b"waits")
        assert await ends(reader) == b""
        assert await one.cancelled.get() == "/waits"
        writer.close()


@played
async def test_an_answer_that_lasts_outlives_every_limit_and_a_crowd() -> None:
    async with serving(LIMITS._replace(answer_s=0.1, header_s=0.1)) as one:
        reader, writer = await one.asks(b"lasts")
        await reader.readuntil(b"begins")
        cut, other = await one.asks(b"waits")
        assert await ends(cut) == b"", "the limit is over"
        async with crowd(one.port, 100):
            one.answers.set()
            assert b"ends" in await ends(reader)
        writer.close()
        other.close()


@played
async def test_clients_that_send_half_a_header_push_out_nobody_who_has_asked() -> None:
    async with serving() as one:
        waiting = [await one.asks(b"waits") for _ in range(LIMITS.connections // 2)]
        async with crowd(one.port, 300, HALF):
            assert await one.answers_at_once()
            one.answers.set()
            for reader, _ in waiting:
                assert b"answer" in await ends(reader)
        for _, writer in waiting:
            writer.close()


@played
async def test_when_all_places_are_taken_by_requests_the_oldest_makes_room() -> None:
    async with serving() as one:
        waiting = [await one.asks(b"waits") for _ in range(LIMITS.connections)]
        assert await one.answers_at_once()
        assert await one.cancelled.get() == "/waits"
        assert await ends(waiting[0][0]) == b""
        one.answers.set()
        assert [b"answer" in await ends(reader) for reader, _ in waiting[1:]] == [True] * (LIMITS.connections - 1)
        for _, writer in waiting:
            writer.close()


@played
async def test_a_handler_ends_when_its_client_goes() -> None:
    async with serving() as one:
        for path in (b"waits", b"lasts"):
            _, writer = await one.asks(path)
            writer.transport.abort()
            assert await one.cancelled.get() == f"/{path.decode()}"


@played
async def test_it_listens_at_a_link_local_address_with_its_zone() -> None:
    found = [each.address for some in psutil.net_if_addrs().values() for each in some if each.address[:4] == "fe80"]
    if not found:
        pytest.skip("this machine has no link-local address")
    served = Served(LIMITS)
    await served.server.close()
    _, port = served.server.listen(found[0], 0)
    reader, writer = await asyncio.open_connection(found[0], port)
    writer.write(ASKS % b"")
    assert (await ends(reader)).endswith(b"answer")
    writer.close()
    await served.server.close()


@played
async def test_it_listens_at_every_address_that_a_name_has() -> None:
    served = Served(LIMITS)
    await served.server.close()
    _, port = served.server.listen("localhost", 0)
    addresses = {str(where[0]) for *_, where in socket.getaddrinfo("localhost", port)}
    for address in addresses:
        reader, writer = await asyncio.open_connection(address, port)
        writer.write(ASKS % b"")
        assert (await ends(reader)).endswith(b"answer")
        writer.close()
    await served.server.close()
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(address, port)
