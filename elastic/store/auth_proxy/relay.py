"""Relays bytes between two connections until one of them ends."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

CHUNK_BYTES = 1 << 16
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def carry(first: Ends, second: Ends) -> None:
    """Relay in both directions; when either side ends, close both. Raises no `OSError`."""
    for _, writer in (first, second):
        connected = writer.get_extra_info("socket")
        if connected is not None and connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    ways = {asyncio.create_task(_one_way(first[0], second[1])), asyncio.create_task(_one_way(second[0], first[1]))}
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        for _, writer in (first, second):
            writer.transport.abort()


async def _one_way(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()  # Pending bytes are sent before both sides are closed.
        await writer.drain()
