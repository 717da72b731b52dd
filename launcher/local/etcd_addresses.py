"""The etcd of a job with a list of hosts and no server: one of the hosts runs it for the others.

It is the host that sorts first, not the first of the list: nodes whose lists differ only in their order then find the
same etcd, which reports the difference. That host leaves last. While it is down the job stops; when it returns its etcd
is empty, and the job forms again.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elastic.errors import ConfigError
from elastic.store import etcd_releases
from launcher.config.ps_layout import static_hosts
from launcher.net import addresses
from launcher.net.endpoints import as_ip, is_any, is_v6, join_host_port, parse_endpoint

if TYPE_CHECKING:
    from launcher.config.config import Config

ANY = "0.0.0.0"
ANY_V6 = "::"
LOOPBACK_V6 = "::1"


@dataclass(frozen=True, slots=True)
class ServedAddresses:
    """The addresses at which etcd listens; `own` is the one that the node of this host uses."""

    hosts: tuple[str, ...]
    own: str


def listening(host: str, hosts: Sequence[str]) -> ServedAddresses:
    """Return where the etcd of `host`, which is this host, has to listen for `hosts`.

    These are the address of the host, and the loopback address for local users. etcd listens on all addresses if
    `host` is not an address of this host (a container behind a mapped port), or only a loopback address while the
    others are elsewhere (Debian's 127.0.1.1), or 0.0.0.0, or :: (also for IPv6).
    """
    if is_any(host):
        return ServedAddresses((ANY, ANY_V6) if is_v6(host) else (ANY,), addresses.LOOPBACK)
    known = addresses.resolve(host)
    if known and all(address.is_loopback for address in known) and all(map(addresses.is_loopback, hosts)):
        return ServedAddresses((str(known[0]),), str(known[0]))
    own = addresses.own_addresses()
    usable = tuple(dict.fromkeys(str(address) for address in known if address in own and not address.is_loopback))
    if not usable:
        return ServedAddresses((ANY,), addresses.LOOPBACK)
    loopback = LOOPBACK_V6 if all(map(is_v6, usable)) else addresses.LOOPBACK
    return ServedAddresses((loopback, *usable), loopback)


def served_endpoint(config: Config) -> str:
    """Return the endpoint at which others connect to the etcd of this host, "" if there is none."""
    if config.serve:
        host, port = parse_endpoint(config.serve)
        return join_host_port(config.host, port) if is_any(host) else config.serve
    return join_host_port(config.host, config.serve_port) if config.serves else ""


def check_own(host: str) -> None:
    """Raise `ConfigError` unless --serve names an address of this machine, or all of them."""
    known = () if is_any(host) else addresses.resolve(host)
    loopback = bool(known) and all(address.is_loopback for address in known)
    if (
        is_any(host)
        or loopback
        or any(not address.is_loopback for address in addresses.own_addresses().intersection(known))
    ):
        return
    own = ", ".join(addresses.candidates()) or "none but the loopback address"
    if not known:
        raise ConfigError(
            f"--serve {host}: this host cannot resolve that name; check it, or use an address of this host: {own}"
        )
    of_name = "" if as_ip(host) is not None else f" is {', '.join(map(str, known))}, which"
    raise ConfigError(
        f"--serve {host}{of_name} is not an address of this host; use one of its own: {own}; or, if {host} is "
        f"forwarded to this host (NAT), use --serve {ANY} --host {host}"
    )


def check_port(where: ServedAddresses, port: int, *, flag: str = "--serve-port") -> None:
    """Raise `ConfigError` unless the port is free at every address; `flag` named it."""
    for host in where.hosts:
        try:
            family = socket.AF_INET6 if is_v6(host) else socket.AF_INET
            socket.create_server((host, port), family=family).close()  # With SO_REUSEADDR, as etcd does it.
        except OSError as error:
            busy = error.errno == errno.EADDRINUSE
            why = "is in use" if busy else f"cannot be used ({os.strerror(error.errno or 0)})"
            same = ", the same on every node" if flag == "--serve-port" else " with another port"
            raise ConfigError(
                f"port {port} of {host} {why}: this host needs it for etcd; stop the process that uses it, or "
                f"use another {flag}{same}"
            ) from error


def serving_notice(server: str, job_id: str) -> str:
    """Return the first message of the host that runs etcd."""
    return (
        f"this host runs etcd for job {job_id} at {server}; if it goes down, the job pauses until it is back "
        "(use --elastic-server to avoid this)"
    )


def open_listener_warning(server: str) -> str:
    """Return the warning that etcd listens on all addresses."""
    host, port = parse_endpoint(server)
    return (
        f"{host} is not an address of this host to which others can connect; etcd listens on all interfaces, "
        f"port {port}"
    )


def is_local_only(config: Config) -> bool:
    """Return whether the etcd of this host listens only for this host."""
    host, _ = parse_endpoint(served_endpoint(config))
    return addresses.only_here(host, static_hosts(config))


def no_secret_warning(server: str) -> str:
    """Return the warning that etcd has no authentication."""
    return (
        f"etcd at {server} has no authentication: any client that can connect controls this job; give every "
        "node the same ELASTIC_JOB_SECRET or --job-secret-file (openssl rand -hex 16 makes one), or close the port to "
        "others"
    )


def old_release(version: str, *, closed: bool) -> str:
    """Return the warning about an etcd with known vulnerabilities that is open to others; `closed`: with a secret."""
    which = f"etcd {version}, a release with known vulnerabilities" if version else "an etcd of an unknown release"
    who = "hosts that have the job's secret" if closed else "every client that can connect to its port"
    return (
        f"this host runs {which}, open to {who}; put a newer etcd on PATH ({etcd_releases.safe_ones()} or later), or "
        "use a separate etcd with --elastic-server"
    )


def why_waiting(host: str, job_id: str) -> str:
    """Return why a node waits although etcd answers."""
    return f"{host} runs etcd, but has not created job {job_id} yet"
