"""A TCP listener at an address of this machine that is not loopback: it records, and may pass on, what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from launcher.net.addresses import candidates
from launcher.net.endpoints import join_host_port


@dataclass
class Wire:
    """`connections` were accepted at `endpoint`, and `sent` came over all of them."""

    endpoint: str = ""
    connections: int = 0
    sent: bytearray = field(default_factory=bytearray)


@contextlib.asynccontextmanager
async def wire(behind: str = "") -> AsyncIterator[Wire]:
    """Listen; connections are passed on to the server `behind` (host:port), and without one they are closed."""
    if not candidates():
        pytest.skip("this machine has no address but loopback")
    found, passed = Wire(), set[asyncio.Task[None]]()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        with contextlib.closing(writer):
            if not behind:
                return
            host, _, port = behind.rpartition(":")
            there, on = await asyncio.open_connection(host, int(port))
            with contextlib.closing(on):
                back = asyncio.create_task(_copy(there, writer))
                passed.add(back)
                await _copy(reader, on, found.sent)

    server = await asyncio.start_server(take, candidates()[0], 0)
    found.endpoint = join_host_port(*server.sockets[0].getsockname()[:2])
    try:
        yield found
    finally:
        server.close()
        for task in passed:
            task.cancel()
        await asyncio.gather(*passed, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, record: bytearray | None = None) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            if record is not None:
                record += data
            target.write(data)
            await target.drain()
