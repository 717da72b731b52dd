"""The addresses of this host: which one the node advertises, its interface, and whether it is local to a container.

No address comes from a lookup of the host's own name, which gives 127.0.1.1 on many hosts. Other nodes can connect to
the address with which this host connects to the store.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from elastic.errors import ConfigError, StoreUnavailable
from launcher.net.endpoints import as_ip, bare_host, check_host, join_host_port, parse_endpoint

CANDIDATES_MAX = 8
"""Maximum number of addresses that a message names."""

LOOPBACK = "127.0.0.1"

ANY_PORT = 9
"""A port for route lookups in the kernel. No packet is sent to it."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DOCKER_BRIDGE = ipaddress.ip_network("172.17.0.0/16")
"""The network of docker's default bridge: its addresses are valid only on one host."""
MARKS = (".dockerenv", "run/.containerenv")
"""Files that docker and podman put into every container."""
WORDS = ("/docker", "/kubepods", "/containerd", "/libpod", "/lxc")
"""Parts of the name of a container's control group."""


def is_loopback(host: str) -> bool:
    """Return whether every address of `host` is a loopback address; False for a name that does not resolve."""
    found = resolve(host)
    return bool(found) and all(address.is_loopback for address in found)


def advertised(host_flag: str, environ: Mapping[str, str], endpoints: Sequence[str], nic: str = "") -> str:
    """Return the address that this node advertises to the others.

    It is `host_flag` (`Config.host`), else POD_IP, else the address of the interface `nic`, else the local end of the
    route to the store (from a connected UDP socket; nothing is sent). With a store on the loopback interface all nodes
    are on this host, and the address is 127.0.0.1.

    Raises `ConfigError` if others cannot connect to the address, with the usable ones, and `StoreUnavailable` without a
    route to any endpoint, or if their names do not resolve (yet).
    """
    servers = [parse_endpoint(endpoint) for endpoint in endpoints]
    given = bare_host(host_flag or environ.get("POD_IP", ""))
    if given:
        _check_usable(given, source_of(given, environ), servers)
        return given
    if nic:
        address = nic_address(nic, endpoints)
        _check_usable(address, f"--nic {nic}:", servers)
        return address
    remote = [(host, port) for host, port in servers if not is_loopback(host)]
    if not remote:
        return LOOPBACK
    for host, port in remote:
        local_address = _route(host, port)
        if local_address is not None:
            return local_address
    if unknown := [host for host, _ in remote if not resolve(host)]:
        names = ", ".join(unknown)
        raise StoreUnavailable(f"this host cannot resolve {names}; check the spelling, DNS and /etc/hosts")
    names = ", ".join(join_host_port(host, port) for host, port in remote)
    raise StoreUnavailable(f"no route to {names}; check the network, or set the address of this node with --host")


def source_of(host: str, environ: Mapping[str, str]) -> str:
    """Return the variable or flag that set `host`."""
    return next((name for name in ("POD_IP", "ELASTIC_HOST") if bare_host(environ.get(name, "")) == host), "--host")


def interface(host: str) -> str | None:
    """Return the network interface that owns an address of `host`, None if this host has none."""
    return interface_of(resolve(host))


def owned_by(interface: str | None) -> frozenset[Address]:
    """Return every current address of a network interface; "eth0:1" is a second address of eth0."""
    return frozenset(
        ip for name, ips in _interfaces().items() if interface in (name, name.partition(":")[0]) for ip in ips
    )


def known_by(interface: str | None) -> frozenset[Address]:
    """Return the addresses that identify a network interface, even if its name changes.

    IPv6 link-local addresses (fe80::) do not: they are derived from the MAC of the NIC, which a VLAN or a bridge on it
    also has. IPv4 link-local addresses (169.254.0.0/16) count only if there are no others.
    """
    found = owned_by(interface)
    return frozenset(one for one in found if not one.is_link_local) or frozenset(
        one for one in found if one.version == 4
    )


def interface_now(interface: str | None, known: Collection[Address]) -> str | None:
    """Return the current name of the interface with the addresses `known`.

    It is `interface` while that has one of them, then the interface that has one now; if none has, `interface`.
    """
    return interface if owned_by(interface).intersection(known) else interface_of(known) or interface


def interface_of(found: Iterable[Address]) -> str | None:
    """Return the network interface that has one of these addresses now, None if there is none."""
    wanted = set(found)
    return next((name.partition(":")[0] for name, ips in _interfaces().items() if wanted.intersection(ips)), None)


def only_here(host: str, peers: Sequence[str]) -> bool:
    """Return whether `host` and all its peers are this host.

    A name with a loopback address here may have another address on other hosts (Debian's 127.0.1.1).
    """
    return is_loopback(host) and all(map(is_loopback, peers))


def interface_among(host: str, peers: Sequence[str]) -> str | None:
    """Return the network interface that `host`, this host, uses for `peers`; None if unknown.

    It is the one that owns its address. If there is none, or a loopback interface while peers are on other hosts, it is
    the interface of the route to the first of these.
    """
    owner = interface(host)
    if owner is not None and not is_loopback(host):
        return owner
    for peer in peers:
        local = None if is_loopback(peer) else _route(peer, ANY_PORT)
        if local is not None:
            return interface(local) or owner
    return owner


def own_addresses() -> frozenset[Address]:
    """Return every address of this host's interfaces."""
    return frozenset(ip for ips in _interfaces().values() for ip in ips)


def nic_address(nic: str, endpoints: Sequence[str] = ()) -> str:
    """Return the address of a network interface: IPv4 if it has one, unless every server is an IPv6 address.

    Raises `ConfigError` with a list of interfaces if this one does not exist or has no address.
    """
    owned = _interfaces()
    if nic not in owned:
        raise ConfigError(f"--nic {nic}: no such interface on this host; use one of {_listed(owned)}")
    addresses = [ip for ip in owned[nic] if not ip.is_link_local]
    if not addresses:
        usable = {name: ips for name, ips in owned.items() if any(not ip.is_link_local for ip in ips)}
        raise ConfigError(f"--nic {nic} has no address; is it up? Interfaces with an address: {_listed(usable)}")
    servers = [as_ip(parse_endpoint(endpoint)[0]) for endpoint in endpoints]
    version = 6 if servers and all(ip is not None and ip.version == 6 for ip in servers) else 4
    return str(next((ip for ip in addresses if ip.version == version), addresses[0]))


def _interfaces() -> dict[str, list[Address]]:
    """Return the addresses of every network interface of this host."""
    return {
        name: [
            ipaddress.ip_address(address.address.partition("%")[0])
            for address in owned
            if address.family in (socket.AF_INET, socket.AF_INET6)
        ]
        for name, owned in psutil.net_if_addrs().items()
    }


def _listed(owned: Mapping[str, Sequence[object]]) -> str:
    named = [f"{name} ({ips[0]})" if ips else name for name, ips in owned.items()]
    return ", ".join(named[:CANDIDATES_MAX]) or "none"


def candidates() -> tuple[str, ...]:
    """Return the addresses of this host to which other hosts may be able to connect."""
    usable = (ip for ips in _interfaces().values() for ip in ips if not (ip.is_loopback or ip.is_link_local))
    return tuple(map(str, usable))[:CANDIDATES_MAX]


def in_container(root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container, by the marks of docker, podman and others."""
    if any((root / mark).exists() for mark in MARKS):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(word in groups for word in WORDS)


def bridge_hint(host: str, servers: Sequence[str], *, inside: bool) -> str:
    """Return the fix for an address that is valid only on this host; "" if none is needed.

    `servers` are etcd's endpoints: if one of them is on the same bridge, or on this host, all nodes are on this host.
    """
    ip = as_ip(host)
    if not inside or ip is None or ip not in DOCKER_BRIDGE or not servers:
        return ""
    if not all(_elsewhere(parse_endpoint(server)[0]) for server in servers):
        return ""
    return (
        f"{host} is an address of docker's bridge, to which other hosts cannot connect: start the container with "
        "--network host; published ports (-p LOW-HIGH:LOW-HIGH, with --host ADDRESS_OF_THE_HOST "
        "--port-range LOW:HIGH) are enough only if workers use neither gloo nor NCCL"
    )


def _elsewhere(server: str) -> bool:
    ip = as_ip(server)
    return not is_loopback(server) and (ip is None or ip not in DOCKER_BRIDGE)


def _check_usable(host: str, source: str, servers: Sequence[tuple[str, int]]) -> None:
    try:
        check_host(host)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    ip = as_ip(host)
    if ip is not None and (ip.is_unspecified or ip.is_multicast):
        raise ConfigError(f"{source} {host} is not the address of a single host; {_hint()}")
    remote = [server for server, _ in servers if not is_loopback(server)]
    if remote and is_loopback(host):
        raise ConfigError(
            f"{source} {host} is reachable only from this host, but etcd {remote[0]} is elsewhere: "
            f"other nodes could not connect; {_hint()}"
        )


def _hint() -> str:
    found = candidates()
    return f"use one of {', '.join(found)}" if found else "use an address of this host to which other nodes can connect"


def resolve(host: str) -> tuple[Address, ...]:
    """Return every address of a name; none if it does not resolve."""
    ip = as_ip(host)
    if ip is not None:
        return (ip,)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return ()
    return tuple(ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found)


def _route(host: str, port: int) -> str | None:
    """Return the local address of the route to `host`, None without a route."""
    try:
        targets = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError):
        return None
    for family, kind, protocol, _, target in targets:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.connect(target)
            except OSError:  # No route in this family; the next one may have one.
                continue
            return str(probe.getsockname()[0]).partition("%")[0]
    return None
