"""What a server without TLS answers to the first words of HTTP/2: whether it is one that gRPC speaks to."""

from __future__ import annotations

import asyncio
from typing import Final

from elastic._net import connected

LIMIT_S = 1.0
GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The client's first words, with no settings. A server of etcd waits for them."""
HEAD_BYTES = 9
"""Of a frame."""


async def read_first_bytes(host: str, port: int) -> bytes:
    """The first bytes of its answer; nothing if there is none."""
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
    """Tell whether the first frame is of the type SETTINGS."""
    return head[3:4] == b"\4"
