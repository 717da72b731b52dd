"""The tunnel to an etcd behind an auth proxy: gRPC connects to a local socket, and the tunnel relays its bytes.

gRPC cannot run a handshake at the start of its connections. It therefore connects to an abstract Unix socket of this
process, and for each such connection the tunnel makes one to the proxy and proves that it knows the secret. Abstract
sockets have no permissions, and every process of the host can see their names; the kernel reports which process has
connected, and the tunnel only serves this process.
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
"""Timeout of the connection, and of each line of the proxy."""
BACKLOG = 16

NO_AUTH_PROXY: Final = (
    "it does not ask for the job's secret; give the same ELASTIC_JOB_SECRET or --job-secret-file to the host that "
    "serves etcd, or, if you run that etcd yourself, to no node"
)
OTHER_VERSION: Final = (
    "the host that serves it runs another version of elastic-launch; install the same version on every node"
)
NO_LINE: Final = b"\n"
CLOSED: Final = "it closes the connection"
OTHER_SECRET: Final = (
    "this node has another secret than the host that serves it; give every node the same ELASTIC_JOB_SECRET or "
    "--job-secret-file"
)


@functools.lru_cache(maxsize=8)
def _key(secret: str, salt: str) -> bytes:
    """Stretch the secret. This is slow, and the key is the same for all connections to a proxy."""
    return stretched(secret, salt)


class AuthTunnel:
    """Relays to one proxy.

    `refused` is why the proxy rejects this node, `unreachable` why no connection can be made; "" otherwise.
    """

    def __init__(self, target: str, secret: str) -> None:
        """`target` is the proxy's `host:port`, `secret` the job secret. `open` starts to listen."""
        self._host, self._port = split_host_port(target)
        self._secret = secret
        self._listener: socket.socket | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self.refused = ""
        self.unreachable = ""

    def open(self) -> str:
        """Listen, and return the target for gRPC. Call it in the event loop."""
        if self._listener is None:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._listener.bind(f"\0elastic-passage-{secrets.token_hex(16)}")
            self._listener.listen(BACKLOG)
            asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return f"unix-abstract:{self._listener.getsockname()[1:].decode()}"

    async def close(self) -> None:
        """Stop relaying; returns when every connection is closed."""
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
        if peer_process(connected)[0] != os.getpid():  # A fork of this process has another pid.
            connected.close()
            return
        connected.setblocking(False)
        task = asyncio.create_task(self._serve(connected), name=f"passage to {self._host}")
        self._relays.add(task)
        task.add_done_callback(self._relays.discard)
        task.add_done_callback(lambda _: connected.close())  # A task that was cancelled early closes nothing.

    async def _serve(self, connected: socket.socket) -> None:
        remote: Ends | None = None
        local = await asyncio.open_connection(sock=connected)
        try:
            remote = await self._open_authenticated()
        except TimeoutError:
            self.unreachable = "no answer in time"
        except OSError as error:
            self.unreachable = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        finally:
            if remote is None:
                local[1].transport.abort()
        if remote is not None:
            await carry(local, remote)

    async def _open_authenticated(self) -> Ends | None:
        """Open a connection on which etcd answers next; None if the proxy rejects this node."""
        async with asyncio.timeout(DIAL_LIMIT_S):
            there = await connected(self._host, self._port)
        try:
            self.refused = await self._prove(*there)
        except BaseException:  # Also on cancellation: no other code can close this connection.
            there[1].transport.abort()
            raise
        self.unreachable = ""
        if self.refused:
            there[1].transport.abort()
            return None
        return there

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Return why the proxy rejects this node, "" if it accepts it. Raises `OSError` if a retry may succeed."""
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
    """Read one line, or its part before the end of the connection. The reader keeps the bytes after it for etcd."""
    try:
        return await reader.readline()
    except ValueError:  # It is longer than the reader's buffer, so it is not from a proxy.
        return NO_LINE
