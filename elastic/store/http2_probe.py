"""A probe without TLS for HTTP/2: whether gRPC can talk to a server."""

from __future__ import annotations

import asyncio
from typing import Final

from elastic._net import connected

LIMIT_S = 1.0
GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The client's connection preface, with empty settings. An etcd server waits for it."""
HEAD_BYTES = 9
"""Bytes of the header of a frame."""


async def read_first_bytes(host: str, port: int) -> bytes:
    """Return the first bytes of the server's answer; b"" if there is none."""
    try:
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await connected(host, port)
            try:
                writer.write(GREETING)
                return await reader.readexactly(HEAD_BYTES)
            finally:
                writer.transport.abort()
    except (OSError, EOFError):
        return b""


def is_http2(head: bytes) -> bool:
    """Return whether the first frame has the type SETTINGS."""
    return head[3:4] == b"\4"
