"""The agent's listener, which says who it is, and the question to another agent's.

Whoever connects gets one line (`launcher.wire.link_messages.Greeting`). Until links are made (`hand_to`), nothing is
read and the connection is closed; who has learned the secret of the job can then go on to a link
(`launcher.peers.inbound_links`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress

from elastic._net import resolved
from elastic.errors import ConfigError
from launcher.net.acceptor import Acceptor
from launcher.net.addresses import is_loopback
from launcher.net.endpoints import as_ip
from launcher.net.lines import LINE_MAX
from launcher.wire.link_messages import Greeting, greeting_line, read_greeting

BACKLOG = 128
"""Connections that wait or are taken in one round of the loop; more of a flood waits outside."""
ASK_LIMIT_S = 2.0
"""How long a node may take to say who it is."""
PAUSE_S = 1.0
"""Before the next connection is taken when this process has no descriptor or memory for one."""


class PeerListener:
    """Listens until `close`. `port` is where."""

    def __init__(self, listener: socket.socket, line: bytes) -> None:
        self._take: Callable[[socket.socket], None] = lambda connected: send_rejection(connected, line)
        self.address = str(listener.getsockname()[0])
        self.port = int(listener.getsockname()[1])
        self._acceptor = Acceptor(listener, lambda one: self._take(one), room=lambda: BACKLOG, pause_s=PAUSE_S)

    @classmethod
    async def listen(cls, host: str, job_id: str, node: str, port: int = 0) -> PeerListener:
        """Listen on every address of this machine (`host` may be ""), or on `host` alone if it is of the loopback.

        A port that is named is one that this process holds (`launcher.net.ports`); 0 is any.
        """
        local = host if as_ip(host) is not None else "127.0.0.1"
        try:
            bound = _bound(local if host and is_loopback(host) else "", port)
        except OSError as error:
            raise ConfigError(f"this agent cannot listen on any port ({error.strerror}); free some first") from error
        bound.setblocking(False)
        bound.listen(BACKLOG)
        return cls(bound, greeting_line(Greeting(job_id, node)))

    def hand_to(self, take: Callable[[socket.socket], None]) -> None:
        """Give every connection that comes from now on to `take`, which owns it and greets it."""
        self._take = take

    async def close(self) -> None:
        """Listen no more."""
        self._acceptor.close()


def send_rejection(connected: socket.socket, line: bytes) -> None:
    """Say a line that fits into every socket's buffer, and be done."""
    with suppress(OSError):  # Who connected is gone already.
        connected.send(line)
    connected.close()


async def ask_greeting(host: str, port: int) -> Greeting:
    """Ask who listens there; the answer is without a nonce.

    `OSError` when nobody can be reached, `ValueError` when something else than an agent answers. `TimeoutError`, an
    `OSError` too, comes after `ASK_LIMIT_S`, `socket.gaierror` for a name that is not known. Of a name with several
    addresses each gets its share of the time.
    """
    async with asyncio.timeout(ASK_LIMIT_S):
        addresses = await resolved(host)
        for address in addresses[:-1]:
            with suppress(OSError):
                return await _ask(address, port, ASK_LIMIT_S / len(addresses))
        return await _ask(addresses[-1], port, ASK_LIMIT_S)


async def _ask(address: str, port: int, limit_s: float) -> Greeting:
    async with asyncio.timeout(limit_s):
        reader, writer = await asyncio.open_connection(address, port, limit=LINE_MAX)
        try:
            line = await reader.readline()
        except ValueError:
            line = b""  # It is longer than any of ours.
        finally:
            writer.transport.abort()
    greeting = read_greeting(line.removesuffix(b"\n"))
    return Greeting(greeting.job_id, greeting.node)


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
