"""Addresses: which one this node tells the others, whose interface it is, and whether it is a container's own.

No address is found by looking a name up backwards, which gives 127.0.1.1 on many machines. The address that reaches
the store is the one that others reach.
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
"""How many addresses of this machine a message names."""

LOOPBACK = "127.0.0.1"

ANY_PORT = 9
"""Nothing is sent there: the kernel is only asked for the way."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DOCKER_BRIDGE = ipaddress.ip_network("172.17.0.0/16")
"""The network of docker's default bridge: an address in it is known on one machine alone."""
MARKS = (".dockerenv", "run/.containerenv")
"""Files that docker and podman put into every container."""
WORDS = ("/docker", "/kubepods", "/containerd", "/libpod", "/lxc")
"""Parts of the name of a container's control group."""


def is_loopback(host: str) -> bool:
    """Tell whether every address of `host` is one of this machine alone. A name that does not resolve is not."""
    found = resolve(host)
    return bool(found) and all(address.is_loopback for address in found)


def advertised(host_flag: str, environ: Mapping[str, str], endpoints: Sequence[str], nic: str = "") -> str:
    """The address under which the other nodes reach this one.

    It is `host_flag` (`Config.host`), else POD_IP, else the address of the interface `nic`, else the local end of the
    route to the store (a UDP socket is connected; nothing is sent). With a store on the loopback interface all nodes
    are on this machine, and the answer is 127.0.0.1.

    Raises `ConfigError` when the address cannot be used by others, naming the addresses that could be, and
    `StoreUnavailable` when there is no route to any endpoint, or when their names have no address (yet).
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
        raise StoreUnavailable(f"this machine finds no address for {names}; check the spelling, DNS and /etc/hosts")
    names = ", ".join(join_host_port(host, port) for host, port in remote)
    raise StoreUnavailable(f"no route to {names}; check the network, or name this node with --host")


def source_of(host: str, environ: Mapping[str, str]) -> str:
    """What named this node `host`: a variable or the flag."""
    return next((name for name in ("POD_IP", "ELASTIC_HOST") if bare_host(environ.get(name, "")) == host), "--host")


def interface(host: str) -> str | None:
    """The network interface that owns an address of `host`, None if it is not one of this machine's."""
    return interface_of(resolve(host))


def owned_by(interface: str | None) -> frozenset[Address]:
    """Every address of this network interface now; "eth0:1" is a second address of eth0."""
    return frozenset(
        ip for name, ips in _interfaces().items() if interface in (name, name.partition(":")[0]) for ip in ips
    )


def known_by(interface: str | None) -> frozenset[Address]:
    """The addresses that tell this network interface from others, also when it has another name.

    Those of IPv6's own link (fe80::) do not: they are made of the card's MAC, which a VLAN or a bridge on the card has,
    too. IPv4's (169.254.0.0/16) do only where there is nothing else.
    """
    found = owned_by(interface)
    return frozenset(one for one in found if not one.is_link_local) or frozenset(
        one for one in found if one.version == 4
    )


def interface_now(interface: str | None, known: Collection[Address]) -> str | None:
    """Where the interface with the addresses `known` is now.

    It is the one of that name as long as that has one of them, and then the one that has come by one; if nobody has,
    it is still `interface`.
    """
    return interface if owned_by(interface).intersection(known) else interface_of(known) or interface


def interface_of(found: Iterable[Address]) -> str | None:
    """The network interface that has one of these addresses now, None if there is none."""
    wanted = set(found)
    return next((name.partition(":")[0] for name, ips in _interfaces().items() if wanted.intersection(ips)), None)


def only_here(host: str, peers: Sequence[str]) -> bool:
    """Tell whether `host`, and all hosts that it is to work with, are this machine alone.

    A host with a loopback address at home may have a real one elsewhere (Debian's 127.0.1.1).
    """
    return is_loopback(host) and all(map(is_loopback, peers))


def interface_among(host: str, peers: Sequence[str]) -> str | None:
    """The network interface with which `host`, this machine, works with `peers`; None if it is not known.

    It is the one that owns its address. Where that is none, or reaches this machine alone while the peers are
    elsewhere, it is the one on the way to the first of them that is.
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
    """Every address of this machine's interfaces."""
    return frozenset(ip for ips in _interfaces().values() for ip in ips)


def nic_address(nic: str, endpoints: Sequence[str] = ()) -> str:
    """The address of a network interface: IPv4 if it has one, unless every server is an IPv6 address.

    Raises `ConfigError` that lists the interfaces there are when this one is not there or has no address.
    """
    owned = _interfaces()
    if nic not in owned:
        raise ConfigError(f"--nic {nic}: there is no such interface here; use one of {_listed(owned)}")
    addresses = [ip for ip in owned[nic] if not ip.is_link_local]
    if not addresses:
        usable = {name: ips for name, ips in owned.items() if any(not ip.is_link_local for ip in ips)}
        raise ConfigError(f"--nic {nic} has no address; is it up? Those that have one: {_listed(usable)}")
    servers = [as_ip(parse_endpoint(endpoint)[0]) for endpoint in endpoints]
    version = 6 if servers and all(ip is not None and ip.version == 6 for ip in servers) else 4
    return str(next((ip for ip in addresses if ip.version == version), addresses[0]))


def _interfaces() -> dict[str, list[Address]]:
    """The addresses of every network interface of this machine."""
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
    """The addresses of this machine that other machines may be able to use."""
    usable = (ip for ips in _interfaces().values() for ip in ips if not (ip.is_loopback or ip.is_link_local))
    return tuple(map(str, usable))[:CANDIDATES_MAX]


def in_container(root: Path = Path("/")) -> bool:
    """Tell whether this process runs in a container, by what docker, podman and others leave there."""
    if any((root / mark).exists() for mark in MARKS):
        return True
    try:
        groups = (root / "proc/1/cgroup").read_text(errors="replace")
    except OSError:
        return False
    return any(word in groups for word in WORDS)


def bridge_hint(host: str, servers: Sequence[str], *, inside: bool) -> str:
    """What to do about an address that only this machine knows; "" if there is nothing to do.

    `servers` are etcd's endpoints: with one of them on the same bridge, or on this machine, all is on this machine.
    """
    ip = as_ip(host)
    if not inside or ip is None or ip not in DOCKER_BRIDGE or not servers:
        return ""
    if not all(_elsewhere(parse_endpoint(server)[0]) for server in servers):
        return ""
    return (
        f"{host} is an address of docker's bridge, which other machines do not reach: start the container with "
        "--network host; ports published with -p LOW-HIGH:LOW-HIGH, with --host ADDRESS_OF_THE_MACHINE "
        "--port_range LOW:HIGH, do where workers use neither gloo nor NCCL"
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
        raise ConfigError(f"{source} {host} is not the address of one machine; {_hint()}")
    remote = [server for server, _ in servers if not is_loopback(server)]
    if remote and is_loopback(host):
        raise ConfigError(
            f"{source} {host} reaches only this machine, but the store {remote[0]} is elsewhere: "
            f"other nodes could not connect; {_hint()}"
        )


def _hint() -> str:
    found = candidates()
    return f"use one of {', '.join(found)}" if found else "name an address of this machine that other nodes reach"


def resolve(host: str) -> tuple[Address, ...]:
    """Every address of a name; none if it does not resolve."""
    ip = as_ip(host)
    if ip is not None:
        return (ip,)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return ()
    return tuple(ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found)


def _route(host: str, port: int) -> str | None:
    """The local address of the route to `host`, None if there is none."""
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
