"""The tunnel to an etcd behind an authenticating proxy: gRPC speaks to a local socket, and its bytes are relayed.

gRPC has no say in how its connections begin. So it connects to an abstract Unix socket of this process, and for each
such connection one is made to the proxy, which first wants to see that we know the secret. Abstract sockets have no
permissions, and every process of the machine can see their names; the kernel says which process has connected, and only
this process is served.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import socket
from typing import Final

from elastic._net import connected, peer_process
from elastic._text import split_host_port
from elastic.auth.handshake import MAC, is_proof, new_nonce, stretched
from elastic.store.auth_proxy import protocol
from elastic.store.auth_proxy.relay import Ends, carry
from elastic.store.http2_probe import is_http2, read_first_bytes

DIAL_LIMIT_S = 2.0
"""For the connection, and for each line of the proxy."""
BACKLOG = 16

NO_AUTH_PROXY: Final = (
    "nobody asks for the job's secret there; give the same ELASTIC_JOB_SECRET or --job_secret_file to the host that "
    "serves etcd, or, if it is an etcd of your own, to nobody"
)
OTHER_VERSION: Final = (
    "the host that serves it runs another version of elastic-launch; install the same version on every node"
)
NO_LINE: Final = b"\n"
CLOSED: Final = "it closes the connection"
OTHER_SECRET: Final = (
    "this node has another secret than the host that serves it; give every node the same ELASTIC_JOB_SECRET or "
    "--job_secret_file"
)


@functools.lru_cache(maxsize=8)
def _key(secret: str, salt: str) -> bytes:
    """It takes a moment to make, and is the same for all connections to a proxy."""
    return stretched(secret, salt)


class AuthTunnel:
    """Carries to one proxy. `refused` says why this node is not let in, `trouble` why nobody is reached; else ""."""

    def __init__(self, target: str, secret: str) -> None:
        """`target` is `host:port`. Nothing is opened yet."""
        self._host, self._port = split_host_port(target)
        self._secret = secret
        self._listener: socket.socket | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self.refused = ""
        self.trouble = ""

    def open(self) -> str:
        """Listen, and return the target for gRPC. Within the event loop."""
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._listener.bind(f"\0elastic-passage-{secrets.token_hex(16)}")
            self._listener.listen(BACKLOG)
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return f"unix-abstract:{self._listener.getsockname()[1:].decode()}"

    async def close(self) -> None:
        """Carry nothing more; returns when every connection is closed."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for task in self._relays:
            task.cancel()
        if self._relays:
            await asyncio.wait(self._relays)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connected, _ = self._listener.accept()
        except OSError:
            return
        if peer_process(connected)[0] != os.getpid():  # Asked for now: a fork of this process has another one.
            connected.close()
            return
        connected.setblocking(False)
        task = asyncio.create_task(self._serve(connected), name=f"passage to {self._host}")
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        task.add_done_callback(lambda _: connected.close())  # One that was cancelled before it began closed nothing.

    async def _serve(self, connected: socket.socket) -> None:
        remote: Ends | None = None
        local = await asyncio.open_connection(sock=connected)
        try:
            remote = await self._open_authenticated()
        except TimeoutError:
            self.trouble = "no answer in time"
        except OSError as error:
            self.trouble = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        finally:
            if remote is None:
                local[1].transport.abort()
        if remote is not None:
            await carry(local, remote)

    async def _open_authenticated(self) -> Ends | None:
        """A connection on which etcd speaks next; None if the proxy does not let us in."""
        async with asyncio.timeout(DIAL_LIMIT_S):
            there = await connected(self._host, self._port)
        try:
            self.refused = await self._prove(*there)
        except BaseException:  # Also when it is cancelled: nobody else knows of this connection.
            there[1].transport.abort()
            raise
        self.trouble = ""
        if self.refused:
            there[1].transport.abort()
            return None
        return there

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Why this node is not let in, "" if it is. Raises `OSError` where that may be another time."""
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                said = await _line(reader)
        except TimeoutError:
            if is_http2(await read_first_bytes(self._host, self._port)):
                return NO_AUTH_PROXY
            raise
        if not said:
            raise ConnectionError(CLOSED)
        greeting = protocol.read_greeting(said)
        if greeting is None:
            return OTHER_VERSION if protocol.is_auth_proxy(said) else NO_AUTH_PROXY
        salt, nonce = greeting
        own = new_nonce()
        proofs = protocol.store_proofs(await asyncio.to_thread(_key, self._secret, salt), nonce, own)
        if not is_proof(protocol.read_word(await _exchanged(reader, writer, own), MAC), proofs.server):
            return OTHER_SECRET
        return "" if await _exchanged(reader, writer, proofs.client) == protocol.WELCOME else OTHER_SECRET


async def _exchanged(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, word: str) -> bytes:
    """Send a line, and return the answer to it. Raises `OSError` if there is none."""
    writer.write(protocol.word_line(word))
    async with asyncio.timeout(DIAL_LIMIT_S):
        answer = await _line(reader)
    if not answer:
        raise ConnectionError(CLOSED)
    return answer


async def _line(reader: asyncio.StreamReader) -> bytes:
    """One line; what came if the connection ended. What follows the line stays in the reader: it is etcd's."""
    try:
        return await reader.readline()
    except ValueError:  # It fills the reader's buffer, so it is none of a proxy's.
        return NO_LINE
