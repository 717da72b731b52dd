"""One etcd server as the client sees it: its channel, and which server is asked next."""

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
"""The longest answer that is taken: it must arrive within `EtcdOptions.try_s` also over a slow network. grpc's own
limit, 4 MB, is less than a listing of a large job; what is longer than this one comes in pages."""
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # After an outage the connection is back before a lease of a few seconds ends; by default it takes up to 2 min.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 500),
    # This one is the time that a single attempt to connect may take (TLS over a long way included).
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A name that moves to another address, or that does not resolve yet, is looked up again soon (default: 30 s).
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
    # etcd answers too_many_pings to more than one ping in 5 s, and to any ping without a call.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    # A new channel is a new connection, also to the same address.
    ("grpc.use_local_subchannel_pool", 1),
)
SILENCES_MAX = 4
"""After so many tries in a row without a word, the connection itself is given up and made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdOptions:
    """How to speak to etcd.

    `certificates`, if any is named, or an address with https://, switch TLS on. Where etcd refuses the password,
    `password_again` is asked for the one that counts now. `secret` is that of an etcd that is served behind an
    entrance (`elastic.store.auth_proxy.protocol`).
    `try_s` limits one try of a request, `refresh_try_s` one of a refresh; shorter ones find a silent server sooner,
    longer ones are kinder to a slow disk. A refresh asks a second server after `hedge_after_s`. `request_limit_s`: no
    new try of a request is begun after this time.
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
        """The channel credentials; reads the files."""
        return grpc.ssl_channel_credentials(self.certificates.roots(), *self.certificates.chain())


class EtcdEndpoint:
    """One server: its channel, made at first use, and how often in a row it said nothing."""

    def __init__(self, address: EtcdAddress, options: EtcdOptions) -> None:
        """Keep the address; nothing is connected yet. Certificates are read now, so that a wrong path shows early."""
        self.address = address
        self._options = options
        if address.plain and options.certificates:
            raise ConfigError(
                f"http://{address.target} is without TLS, which certificates are for; write https://{address.target}, "
                "or leave out --etcd_ca, --etcd_cert and --etcd_key"
            )
        self.passage = AuthTunnel(address.target, options.secret) if options.secret else None
        self._credentials = options.credentials() if address.tls or options.certificates else None
        self._channel: Any = None
        self._stub: EtcdStub | None = None
        self._silences = 0
        self.misfit = ""
        """What is wrong with TLS between it and us, as far as is known."""
        self.refreshing = KeepaliveStream()

    def __str__(self) -> str:
        """The address."""
        return self.address.target

    @property
    def tls(self) -> bool:
        """Whether TLS is spoken to it."""
        return self._credentials is not None

    @property
    def stub(self) -> Any:
        """Its methods, over a channel that connects at first use. Must first be asked for inside the event loop."""
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
        """Certificates that were renewed count from the next connection on; what cannot be read now leaves the old."""
        if self._credentials is not None:
            with suppress(ConfigError):
                self._credentials = self._options.credentials()

    def answered(self) -> None:
        """Note that it spoke."""
        self._silences = 0
        self.misfit = ""

    def note_timeout(self) -> bool:
        """Note a try without a word; tell whether its connection should be made anew."""
        self._silences += 1
        return self._silences >= SILENCES_MAX

    async def disconnect(self) -> None:
        """Give up the connection; the next use makes a new one. Calls on the old one end as cancelled."""
        channel, self._channel, self._stub = self._channel, None, None
        self._silences = 0
        self.refreshing.close()
        if channel is not None:
            await channel.close()

    async def close(self) -> None:
        """Give up the connection, and the way to it. It is not used again."""
        await self.disconnect()
        if self.passage is not None:
            await self.passage.close()


class EndpointRotation:
    """Which server is asked: one at a time, from a random start, the next one when it fails."""

    def __init__(self, endpoints: Sequence[EtcdEndpoint], random_source: random.Random) -> None:
        """Start anywhere, so that many agents spread over the servers."""
        self.endpoints = tuple(endpoints)
        self._at = random_source.randrange(len(self.endpoints))

    @property
    def current(self) -> EtcdEndpoint:
        """The server that is asked now."""
        return self.endpoints[self._at]

    def current_and_next(self) -> tuple[EtcdEndpoint, ...]:
        """The current server and the one after it, if there is another."""
        return tuple(self.endpoints[(self._at + step) % len(self.endpoints)] for step in range(len(self.endpoints))[:2])

    def leave(self, endpoint: EtcdEndpoint) -> None:
        """Go on to the next server if `endpoint` is the current one, so that many failures move once."""
        if endpoint is self.current:
            self._at = (self._at + 1) % len(self.endpoints)
