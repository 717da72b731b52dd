"""The auth proxy in front of an embedded etcd: admits only clients that prove that they know the job's secret.

etcd itself listens on a socket in a directory that only this user can enter. The users and roles of etcd do not protect
it from unauthenticated clients: versions before 3.6 let them raise an alarm, after which etcd ignores permissions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from elastic.auth.handshake import MAC, NONCE, is_proof, new_nonce, stretched
from elastic.errors import ConfigError
from elastic.store.auth_proxy import protocol
from elastic.store.auth_proxy.relay import carry

PROVE_LIMIT_S = 5.0
"""Time limit for a client to authenticate."""
UNAUTHENTICATED_MAX = 256
"""Maximum number of unauthenticated connections; further ones are closed at once."""


class AuthProxy:
    """Listens from `open` to `close`. The socket of etcd changes when etcd restarts."""

    def __init__(self, secret: str, path: Callable[[], str]) -> None:
        """`secret` is the job secret; `path` returns etcd's socket. `open` starts to listen."""
        self._salt = new_nonce()
        self._key = stretched(secret, self._salt)
        self._path = path
        self._servers: list[asyncio.Server] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._unauthenticated = asyncio.Semaphore(UNAUTHENTICATED_MAX)

    async def open(self, hosts: Sequence[str], port: int) -> int:
        """Listen at each of these addresses; return the port (0: a free one, for a single address).

        Raises `ConfigError` if the port is not available.
        """
        for host in hosts:
            try:
                server = await asyncio.start_server(self._handle, host, port, limit=protocol.LINE_MAX)
            except OSError as error:
                await self.close()
                raise ConfigError(f"port {port} of {host} cannot be used ({error.strerror}); use another") from error
            self._servers.append(server)
            port = int(server.sockets[0].getsockname()[1])
        return port

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        for server in self._servers:
            server.close()
        for client in self._clients:
            client.cancel()
        if self._clients:
            await asyncio.wait(self._clients)
        self._servers.clear()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        try:
            with suppress(OSError, asyncio.CancelledError):
                if await self._authenticate(reader, writer):
                    await carry((reader, writer), await asyncio.open_unix_connection(self._path()))
        finally:
            writer.transport.abort()

    async def _authenticate(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self._unauthenticated.locked():
            return False
        with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            async with self._unauthenticated, asyncio.timeout(PROVE_LIMIT_S):
                own = new_nonce()
                writer.write(protocol.proxy_greeting(self._salt, own))
                proven = await self._proves(own, reader, writer)
                writer.write(protocol.WELCOME if proven else protocol.NO)
                await writer.drain()
                return proven
        return False

    async def _proves(self, own: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        nonce = protocol.read_word(await reader.readuntil(b"\n"), NONCE)
        if not nonce:
            return False
        proofs = protocol.store_proofs(self._key, own, nonce)
        writer.write(protocol.word_line(proofs.server))
        return is_proof(protocol.read_word(await reader.readuntil(b"\n"), MAC), proofs.client)
