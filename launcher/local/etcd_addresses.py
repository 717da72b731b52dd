"""The etcd of a job that is a list of hosts and has no server: one of the hosts serves it for the others.

It is the host that sorts first, not the first of the list: nodes whose lists differ only in their order then meet at
the same place, and are told that the order differs. That host leaves last. While it is away the job stops; when it
comes back its etcd is empty, and the job forms again.
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
    """Where the served etcd listens; `own` is the address at which the node that serves reaches it."""

    hosts: tuple[str, ...]
    own: str


def listening(host: str, hosts: Sequence[str]) -> ServedAddresses:
    """Where the etcd of `host`, which is this machine, has to listen for `hosts`.

    It is the host's own address, and the loopback address for people on this machine. A host whose address is not one
    of this machine's (a container behind a mapped port), or that only this machine knows by a loopback address while
    the others are elsewhere (Debian's 127.0.1.1), listens everywhere; so does 0.0.0.0, and :: also for IPv6.
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
    """Where others reach the etcd that this host serves for them, "" if there is none."""
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
            f"--serve {host}: this machine finds no address for that name; check it, or name an address of this "
            f"machine: {own}"
        )
    of_name = "" if as_ip(host) is not None else f" is {', '.join(map(str, known))}, which"
    raise ConfigError(
        f"--serve {host}{of_name} is not an address of this machine; name one of its own: {own}; or, where {host} is "
        f"forwarded to this machine (NAT), use --serve {ANY} --host {host}"
    )


def check_port(where: ServedAddresses, port: int, *, flag: str = "--serve_port") -> None:
    """Raise `ConfigError` unless the port is free at every address; `flag` named it."""
    for host in where.hosts:
        try:
            family = socket.AF_INET6 if is_v6(host) else socket.AF_INET
            socket.create_server((host, port), family=family).close()  # With SO_REUSEADDR, as etcd does it.
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({os.strerror(error.errno or 0)})"
            same = ", the same on every node" if flag == "--serve_port" else " with another port"
            raise ConfigError(
                f"port {port} of {host} {why}: this host serves etcd for the others there; end what uses it, or "
                f"use another {flag}{same}"
            ) from error


def serving_notice(server: str, job_id: str) -> str:
    """What the host that serves says first."""
    return (
        f"this host serves the etcd of job {job_id} for the others, on {server}, and must not be "
        "lost: without it the job stops until it is back (with --elastic_server any host may be lost)"
    )


def open_listener_warning(server: str) -> str:
    """What to say where the etcd listens everywhere."""
    host, port = parse_endpoint(server)
    return (
        f"none of this machine's addresses that others reach is that of {host}: the etcd listens at all of them, on "
        f"port {port}"
    )


def is_local_only(config: Config) -> bool:
    """Tell whether the etcd that this host serves listens for this machine alone."""
    host, _ = parse_endpoint(served_endpoint(config))
    return addresses.only_here(host, static_hosts(config))


def no_secret_warning(server: str) -> str:
    """What there is to warn of where no secret is."""
    return (
        f"whoever reaches {server} can stop this job or steer it: the etcd there asks nobody who he is; give every "
        "node the same ELASTIC_JOB_SECRET or --job_secret_file (openssl rand -hex 16 makes one), or close the port to "
        "others"
    )


def old_release(version: str, *, closed: bool) -> str:
    """The warning about an etcd with known vulnerabilities that other hosts reach; `closed`: with a secret."""
    which = f"etcd {version}, a release with known vulnerabilities" if version else "an etcd of an unknown release"
    who = "hosts that have the job's secret" if closed else "everybody who reaches its port"
    return (
        f"this host serves {which}, to {who}; put a newer etcd on PATH ({etcd_releases.safe_ones()} or later), or use "
        "an etcd of your own with --elastic_server"
    )


def why_waiting(host: str, job_id: str) -> str:
    """Why a node waits although etcd answers."""
    return f"{host} serves etcd, and has not begun job {job_id}"
