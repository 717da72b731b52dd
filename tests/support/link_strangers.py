"""Connections by hand to an agent's listener, and something that listens in an agent's place."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from launcher.peers.listener import PeerListener
from launcher.wire import link_messages
from launcher.wire.link_messages import Greeting, Prove
from tests.support.link_harness import SECRET


class Stranger:
    """A connection by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def line(self) -> bytes:
        """The next line, without its end; b"" when the connection is closed."""
        try:
            return (await self.reader.readline()).removesuffix(b"\n")
        except ConnectionError:
            return b""

    async def greeted(self) -> Greeting:
        return link_messages.read_greeting(await self.line())

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def is_closed(self) -> None:
        """Wait until the other side has closed it."""
        while await self.line():
            pass

    async def prove(self, node: str = "w-2", secret: str = SECRET) -> Prove:
        """Make a link; the words that did it."""
        said = link_messages.prove(secret, await self.greeted(), node, secrets.token_hex(16))
        self.say(link_messages.encode(said))
        return said


@contextlib.asynccontextmanager
async def connected(agent: PeerListener) -> AsyncIterator[Stranger]:
    reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
    try:
        yield Stranger(reader, writer)
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def impostor(first: bytes, then: bytes = b"", close: bool = True) -> AsyncIterator[int]:
    """Something that listens and says this, and that after it was spoken to; the port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(first)
            if then:
                await reader.readline()
                writer.write(then)
            await (writer.drain() if close else reader.read())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
