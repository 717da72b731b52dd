"""One HTTP request to a metadata server.

It uses no proxy, follows no redirect, keeps no connection, and reads at most `BODY_MAX` bytes. `h11` speaks HTTP, over
asyncio's own streams: a more capable client would increase the agent's memory by a quarter.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import h11

from launcher.spot.endpoint import MetadataEndpoint
from launcher.spot.protocol import MetadataRequest, MetadataResponse

BODY_MAX = 64 << 10
"""Bytes of an answer; a real one has a few hundred."""
CHUNK = 4096


async def fetch(endpoint: MetadataEndpoint, ask: MetadataRequest) -> MetadataResponse:
    """Send a request, and wait for the whole answer; the caller sets the time limit.

    Raises `OSError` if none arrives: the host name is invalid, the answer is not HTTP or too long, or the server
    closes.
    """
    try:
        reader, writer = await asyncio.open_connection(*endpoint, limit=CHUNK)
        try:
            return await _exchange(reader, writer, endpoint, ask)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
    except (h11.ProtocolError, UnicodeError) as error:  # The host may be no name, the answer no text.
        raise ConnectionError(str(error)) from error


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, endpoint: MetadataEndpoint, ask: MetadataRequest
) -> MetadataResponse:
    connection = h11.Connection(h11.CLIENT)
    headers = [("Host", str(endpoint)), ("Connection", "close"), ("Accept", "*/*"), *ask.headers.items()]
    if ask.method == "PUT":
        headers.append(("Content-Length", "0"))
    for part in (h11.Request(method=ask.method, target=ask.path, headers=headers), h11.EndOfMessage()):
        writer.write(connection.send(part) or b"")
    await writer.drain()
    status, said, body = 0, {}, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(CHUNK))
        elif isinstance(event, h11.Response):
            status = event.status_code
            said = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_MAX:
                raise ConnectionError(f"more than {BODY_MAX} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return MetadataResponse(status, said, bytes(body), time.time())
        elif not isinstance(event, h11.InformationalResponse):
            raise ConnectionError("the connection was closed")
