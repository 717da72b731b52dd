"""Connections by hand to an agent's listener, and something that listens in an agent's place."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from elastic.auth.handshake import new_nonce
from launcher.peers.listener import PeerListener
from launcher.wire import link_messages
from launcher.wire.link_messages import Greeting, InspectRequest, LinkRequest, Proof, Request
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

    async def prove(self, node: str = "w-2", secret: str = SECRET, greeting: Greeting | None = None) -> bytes:
        """Make a link; the lines that did it."""
        return await self._prove(LinkRequest(node, new_nonce()), secret, greeting or await self.greeted())

    async def prove_to_look(self, secret: str = SECRET) -> bytes:
        """Be let in as an operator; the lines that did it."""
        return await self._prove(InspectRequest(new_nonce()), secret, await self.greeted())

    async def _prove(self, request: Request, secret: str, greeting: Greeting) -> bytes:
        expected = link_messages.proofs(secret, greeting, request)
        said = link_messages.encode(request), link_messages.encode(Proof(expected.client))
        self.say(said[0])
        assert (await self.line()).startswith(b'{"type":"proof"'), "the listener proves first, to everybody"
        self.say(said[1])
        return b"".join(said)


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
