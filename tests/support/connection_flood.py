"""Strangers at a port: many connections that send what a test says, and stay."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Half: "
"""The beginning of a request whose end never comes."""


@asynccontextmanager
async def crowd(port: int, count: int, said: bytes = HALF) -> AsyncIterator[list[socket.socket]]:
    """Connect that often, say this on each connection, and keep all of them until the end of the block."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    loop, made = asyncio.get_running_loop(), [socket.socket() for _ in range(count)]

    async def come(one: socket.socket) -> None:
        with suppress(ConnectionError):  # The other side may hang up at once.
            await loop.sock_connect(one, ("127.0.0.1", port))
            await loop.sock_sendall(one, said)

    try:
        for one in made:
            one.setblocking(False)
        await asyncio.gather(*map(come, made))
        yield made
    finally:
        for one in made:
            one.close()
