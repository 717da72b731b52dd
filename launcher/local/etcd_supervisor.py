"""The etcd that a supervisor of local nodes runs, for this host or also for others.

When it exits, the supervisor starts a new, empty one, and the job forms again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from elastic.errors import StoreUnavailable
from elastic.store.embedded import EmbeddedEtcd
from elastic.store.etcd_releases import is_safe
from launcher.config.config import Config
from launcher.config.ps_layout import static_hosts
from launcher.local import etcd_addresses
from launcher.local.auth_proxy import AuthProxy
from launcher.net import addresses
from launcher.net.addresses import LOOPBACK
from launcher.net.endpoints import join_host_port, parse_endpoint
from launcher.workers import exit_classification

STARTS_MAX: Final = 5
"""If etcd exits more often, the cause is permanent, such as a full disk."""


class LocalEtcd:
    """An etcd and its addresses; if the job has a secret, etcd is hidden and an auth proxy listens in its place."""

    def __init__(self, config: Config) -> None:
        """Choose the addresses of etcd; `start` starts it.

        Raises `ConfigError` if the address or port for other hosts is not available.
        """
        self._where, self._port = etcd_addresses.ServedAddresses((LOOPBACK,), LOOPBACK), 0
        if config.serves:
            host, self._port = parse_endpoint(config.serve or etcd_addresses.served_endpoint(config))
            if config.serve:  # A name of a list may not resolve yet.
                etcd_addresses.check_own(host)
            self._where = etcd_addresses.listening(host, static_hosts(config) or (host,))
            etcd_addresses.check_port(self._where, self._port, flag="--serve" if config.serve else "--serve-port")
        self.everywhere = not config.serve and self._where.hosts == (etcd_addresses.ANY,)
        """Whether it listens at every address of this host, because none is in the list."""
        secret = config.login.secret
        self.etcd = EmbeddedEtcd(hosts=self._where.hosts, port=self._port, hidden=bool(secret))
        self._auth_proxy = AuthProxy(secret, lambda: self.etcd.socket) if secret else None

    async def start(self) -> str:
        """Start etcd; return its endpoint for the nodes of this host. Raises the errors of `EmbeddedEtcd.start`."""
        server = await self.etcd.start()
        if self._auth_proxy is not None:
            self._port = await self._auth_proxy.open(self._where.hosts, self._port)
        return join_host_port(self._where.own, self._port) if self._port else server

    def old_release(self) -> str:
        """Return the warning about a vulnerable etcd that is open to other hosts, else "". Call it after `start`."""
        if all(map(addresses.is_loopback, self._where.hosts)):
            return ""
        return (
            ""
            if is_safe(self.etcd.version)
            else etcd_addresses.old_release(self.etcd.version, closed=self._auth_proxy is not None)
        )

    async def stop(self) -> None:
        """Stop etcd and its proxy."""
        if self._auth_proxy is not None:
            await self._auth_proxy.close()
        await self.etcd.stop()


async def keep_running(etcd: EmbeddedEtcd, say: Callable[[str], None]) -> None:
    """Restart a running `etcd` at its port whenever it exits.

    Never returns. Raises `StoreUnavailable` or `ConfigError` if it keeps exiting.
    """
    for _ in range(STARTS_MAX):
        how = exit_classification.describe(await etcd.ended())
        say(f"etcd of this job exited ({how}); starting a new, empty one, in which the job forms again")
        await etcd.start()
    how = exit_classification.describe(await etcd.ended())
    raise StoreUnavailable(
        f"etcd of this job exited {STARTS_MAX + 1} times, most recently: {how}; check disk space and memory, or use "
        "a separate etcd with --elastic-server"
    )
