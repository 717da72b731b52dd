"""One etcd server from the client's point of view, and the rotation between servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped, unused-ignore]
import grpc.aio  # type: ignore[import-untyped, unused-ignore]

from elastic.errors import ConfigError
from elastic.store.auth_proxy.client import AuthTunnel
from elastic.store.etcd.address import EtcdAddress
from elastic.store.etcd.keepalive import KeepaliveStream
from elastic.store.etcd.stubs import EtcdStub
from elastic.store.tls import NONE, Certificates

MESSAGE_BYTES_MAX = 16 << 20
"""The longest answer that the client accepts: it must arrive within `EtcdOptions.try_s` even over a slow network.
gRPC's default, 4 MB, is less than a listing of a large job; longer listings are read in pages."""
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Reconnect after an outage before a lease of a few seconds ends; the default takes up to 2 min.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
    # This is the timeout of a single attempt to connect, including TLS over a slow network.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # Look up a name again soon if its address changes or if it does not resolve yet (default: 30 s).
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # etcd answers too_many_pings to more than one ping in 5 s, and to any ping without a call.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # A new channel opens a new connection, even to the same address.
    ("grpc.use_local_subchannel_pool", 1),
)
SILENCES_MAX = 4
"""Attempts in a row without an answer after which the client closes the connection and opens a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """Options of the client.

    `certificates`, if any file is given, or an address with https:// enable TLS. If etcd refuses the password, the
    client calls `password_again` for the current one. `secret` is for an etcd behind an auth proxy
    (`elastic.store.auth_proxy.protocol`).
    `try_s` is the timeout of one attempt of a request, `refresh_try_s` that of a refresh; shorter ones detect a silent
    server sooner, longer ones tolerate a slow disk. A refresh asks a second server after `hedge_after_s`.
    `request_limit_s`: after this time, the client makes no further attempt.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    password_again: Callable[[], str] | None = None
    secret: str = field(default="", repr=False)
    certificates: Certificates = NONE
    try_s: float = 1.0
    refresh_try_s: float = 0.5
    hedge_after_s: float = 0.3
    request_limit_s: float = 3.0

    def __post_init__(self) -> None:
        """Check the certificates, and that there is a user for the password."""
        self.certificates.check()
        if self.password and not self.user:
            raise ConfigError("a password for etcd without a user")

    def credentials(self) -> Any:
        """Read the files, and return the channel credentials."""
        return grpc.ssl_channel_credentials(self.certificates.roots(), *self.certificates.chain())


class EtcdEndpoint:
    """One server: its channel, made at first use, and its attempts in a row without an answer."""

    def __init__(self, address: EtcdAddress, options: EtcdOptions) -> None:
        """Store the address without connecting, and read the certificates, so that a wrong path is reported early."""
        self.address = address
        self._options = options
        if address.plain and options.certificates:
            raise ConfigError(
                f"http://{address.target} is without TLS, which certificates are for; write https://{address.target}, "
                "or leave out --etcd-ca, --etcd-cert and --etcd-key"
            )
        self.passage = AuthTunnel(address.target, options.secret) if options.secret else None
        self._credentials = options.credentials() if address.tls or options.certificates else None
        self._channel: Any = None
        self._stub: EtcdStub | None = None
        self._silences = 0
        self.misfit = ""
        """Why TLS or the auth proxy rejects this client, as far as is known; else ""."""
        self.refreshing = KeepaliveStream()

    def __str__(self) -> str:
        """The address."""
        return self.address.target

    @property
    def tls(self) -> bool:
        """Whether connections to this server use TLS."""
        return self._credentials is not None

    @property
    def stub(self) -> Any:
        """The methods of the server, over a channel that connects at first use. First access it in the event loop."""
        if self._stub is None:
            self._renew_credentials()
            target = self.address.target if self.passage is None else self.passage.open()
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(target, self._credentials, options=CHANNEL_OPTIONS)
            self._stub = EtcdStub(self._channel)
        return self._stub

    def _renew_credentials(self) -> None:
        """Use renewed certificates for the next connection; keep the old ones if the files cannot be read now."""
        if self._credentials is not None:
            with suppress(ConfigError):
                self._credentials = self._options.credentials()

    def answered(self) -> None:
        """Note that the server has answered."""
        self._silences = 0
        self.misfit = ""

    def note_timeout(self) -> bool:
        """Note an attempt without an answer; return whether the connection should be replaced."""
        self._silences += 1
        return self._silences >= SILENCES_MAX

    async def disconnect(self) -> None:
        """Close the connection; the next use opens a new one. Calls on the old one are cancelled."""
        channel, self._channel, self._stub = self._channel, None, None
        self._silences = 0
        self.refreshing.close()
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Close the connection and the tunnel for good."""
        await self.disconnect()
        if self.passage is not None:
            await self.passage.close()


class EndpointRotation:
    """The rotation of servers: one at a time, from a random start; after a failure, the next one."""

    def __init__(self, endpoints: Sequence[EtcdEndpoint], random_source: random.Random) -> None:
        """Start at a random server, so that the agents spread over all servers."""
        self.endpoints = tuple(endpoints)
        self._at = random_source.randrange(len(self.endpoints))

    @property
    def current(self) -> EtcdEndpoint:
        """The server in use."""
        return self.endpoints[self._at]

    def current_and_next(self) -> tuple[EtcdEndpoint, ...]:
        """The current server and the one after it, if there is another."""
        return tuple(self.endpoints[(self._at + step) % len(self.endpoints)] for step in range(len(self.endpoints))[:2])

    def leave(self, endpoint: EtcdEndpoint) -> None:
        """Switch to the next server if `endpoint` is the current one, so that many failures switch only once."""
        if endpoint is self.current:
            self._at = (self._at + 1) % len(self.endpoints)
