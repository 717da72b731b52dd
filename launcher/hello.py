"""The agent's listener, which says who it is, and the question to another agent's.

Whoever connects gets one line, `elastic-launch 1 <job> <node>`, and the connection is closed. Nothing is ever read, so
that nobody can make the agent wait or fill its memory.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from dataclasses import dataclass

from elastic.errors import ConfigError
from launcher.addresses import is_loopback
from launcher.endpoints import as_ip

PROTOCOL = "elastic-launch 1"
BACKLOG = 128
"""Connections that wait or are taken in one round of the loop; more of a flood waits outside."""
LINE_BYTES_MAX = 1024
"""More than the longest job id and node id together."""
ASK_LIMIT_S = 2.0
"""How long a node may take to say who it is."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who listens at an address."""

    job_id: str
    node: str


class Hello:
    """Listens until `close`. `port` is where."""

    def __init__(self, server: asyncio.Server, port: int) -> None:
        self._server = server
        self.port = port

    @classmethod
    async def listen(cls, host: str, job_id: str, node: str, port: int = 0) -> Hello:
        """Listen on every address of this machine, or on the node's alone if it is one of the loopback.

        A port that is named is one that this process holds (`launcher.ports`); 0 is any.
        """
        line = f"{PROTOCOL} {job_id} {node}\n".encode()
        local = host if as_ip(host) is not None else "127.0.0.1"
        try:
            bound = _bound(local if is_loopback(host) else "", port)
        except OSError as error:
            raise ConfigError(f"this agent cannot listen on any port ({error.strerror}); free some first") from error
        server = await asyncio.get_running_loop().create_server(lambda: _Greeter(line), sock=bound, backlog=BACKLOG)
        return cls(server, int(bound.getsockname()[1]))

    async def close(self) -> None:
        """Listen no more."""
        self._server.close()
        await self._server.wait_closed()


class _Greeter(asyncio.Protocol):
    """One connection: a line that fits into every socket's buffer, and the end."""

    def __init__(self, line: bytes) -> None:
        self._line = line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say it, and be done."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        transport.write(self._line)
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()


async def ask(host: str, port: int) -> Greeting:
    """Who listens there? `OSError` when nobody can be reached, `ValueError` when something else than an agent answers.

    `TimeoutError`, an `OSError` too, comes after `ASK_LIMIT_S`.
    """
    async with asyncio.timeout(ASK_LIMIT_S):
        reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES_MAX)
        try:
            line = await reader.readline()
        except ValueError:
            line = b""  # It is longer than any of ours.
        finally:
            writer.transport.abort()
    words = line.decode(errors="replace").split()
    if len(words) != 4 or " ".join(words[:2]) != PROTOCOL:
        raise ValueError("something that is not elastic-launch answers there")
    return Greeting(words[2], words[3])


def _bound(host: str, port: int) -> socket.socket:
    """A bound socket."""
    if host:
        return _socket(socket.AF_INET6 if ":" in host else socket.AF_INET, host, port)
    try:
        return _socket(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _socket(socket.AF_INET, "0.0.0.0", port)  # This machine has no IPv6.


def _socket(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::":
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made
