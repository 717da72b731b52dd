"""The etcd that a parent of nodes runs, for this machine or for others too, and the proxy before it.

It is started again when it dies: in an empty one the job forms again.

The proxy admits only clients that prove to know the job's secret. etcd itself is reached through a socket in a folder
that only this user can enter. Its own users are not enough to keep strangers out: versions before 3.6 let them raise
an alarm, and forget then who may do what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from elastic.auth.handshake import MAC, NONCE, is_proof, new_nonce, stretched
from elastic.errors import ConfigError, StoreUnavailable
from elastic.store.auth_proxy import protocol
from elastic.store.auth_proxy.relay import carry
from elastic.store.embedded import EmbeddedEtcd
from elastic.store.etcd_releases import is_safe
from launcher.config.config import Config
from launcher.config.ps_layout import static_hosts
from launcher.local import etcd_addresses
from launcher.net import addresses
from launcher.net.endpoints import join_host_port, parse_endpoint
from launcher.workers import exit_classification

STARTS_MAX: Final = 5
"""An etcd that dies more often dies of something that stays, such as a full disk."""
PROVE_LIMIT_S: Final = 5.0
"""So long a stranger may hold a connection."""
UNAUTHENTICATED_MAX: Final = 256
"""Connections that have proven nothing yet; more are closed at once."""


class AuthProxy:
    """Listens until `close`. `path` gives the socket of etcd, another one when etcd is started again."""

    def __init__(self, secret: str, path: Callable[[], str]) -> None:
        """Nothing is opened yet."""
        self._salt = new_nonce()
        self._key = stretched(secret, self._salt)
        self._path = path
        self._servers: list[asyncio.Server] = []
        self._clients: set[asyncio.Task[None]] = set()
        self._unauthenticated = asyncio.Semaphore(UNAUTHENTICATED_MAX)

    async def open(self, hosts: Sequence[str], port: int) -> int:
        """Listen at each of these addresses; the port, a free one for 0 (then of one address). Raises `ConfigError`."""
        for host in hosts:
            try:
                server = await asyncio.start_server(self._handle, host, port, limit=protocol.LINE_MAX)
            except OSError as error:
                await self.close()
                raise ConfigError(f"port {port} of {host} cannot be had ({error.strerror}); use another") from error
            self._servers.append(server)
            port = int(server.sockets[0].getsockname()[1])
        return port

    async def close(self) -> None:
        """Listen no more, and cut who is inside."""
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


class LocalEtcd:
    """Where the job has a secret, etcd is hidden and a proxy listens in its place."""

    def __init__(self, config: Config) -> None:
        """Nothing is started yet. Raises `ConfigError` if the address or port for other hosts cannot be had."""
        self._where, self._port = etcd_addresses.ServedAddresses((addresses.LOOPBACK,), addresses.LOOPBACK), 0
        if config.serves:
            host, self._port = parse_endpoint(config.serve or etcd_addresses.served_endpoint(config))
            if config.serve:  # A name of a list may not resolve yet.
                etcd_addresses.check_own(host)
            self._where = etcd_addresses.listening(host, static_hosts(config) or (host,))
            etcd_addresses.check_port(self._where, self._port, flag="--serve" if config.serve else "--serve_port")
        self.everywhere = not config.serve and self._where.hosts == (etcd_addresses.ANY,)
        """Whether it listens at every address of this machine, because none is that of the list."""
        secret = config.login.secret
        self._etcd = EmbeddedEtcd(hosts=self._where.hosts, port=self._port, hidden=bool(secret))
        self._auth_proxy = AuthProxy(secret, lambda: self._etcd.socket) if secret else None

    async def start(self) -> str:
        """Start it; where the nodes of this machine reach it. Raises as `EmbeddedEtcd.start`."""
        server = await self._etcd.start()
        if self._auth_proxy is not None:
            self._port = await self._auth_proxy.open(self._where.hosts, self._port)
        return join_host_port(self._where.own, self._port) if self._port else server

    def old_release(self) -> str:
        """The warning about an etcd that other hosts reach and that is not safe, else "". Call it after `start`."""
        if all(map(addresses.is_loopback, self._where.hosts)):
            return ""
        version = self._etcd.version()
        return "" if is_safe(version) else etcd_addresses.old_release(version, closed=self._auth_proxy is not None)

    async def tend(self, say: Callable[[str], None]) -> None:
        """Start it anew whenever it has ended; see `keep_running`."""
        await keep_running(self._etcd, say)

    async def stop(self) -> None:
        """End it, and let nobody in any more."""
        if self._auth_proxy is not None:
            await self._auth_proxy.close()
        await self._etcd.stop()


async def keep_running(etcd: EmbeddedEtcd, say: Callable[[str], None]) -> None:
    """Start `etcd`, which runs, anew at its port whenever it has ended.

    Never returns. Raises `StoreUnavailable` or `ConfigError` when that does not help.
    """
    for _ in range(STARTS_MAX):
        how = exit_classification.describe(await etcd.ended())
        say(f"the etcd of this job has ended ({how}); another one starts, empty, and the job forms again in it")
        await etcd.start_again()
    how = exit_classification.describe(await etcd.ended())
    raise StoreUnavailable(
        f"the etcd of this job has ended {STARTS_MAX + 1} times, now with: {how}; see whether disk and memory are "
        "full, or use an etcd of your own with --elastic_server"
    )
