"""Holds the ports of a node for its whole lifetime, each within a `with` block.

Another process could take a port between its discovery, its release and its use. Here the sockets stay bound. They are
bound *without* SO_REUSEADDR, so that two agents never get the same port, and set it *afterwards*, so that the worker's
listening socket (torch's TCPStore sets SO_REUSEADDR) can bind to the same port; the agent's socket never listens. This
works because Linux checks the flag of the existing socket when another one binds.

A port that an earlier job used lingers for a minute: Linux keeps its closed connections, and refuses a bind without
SO_REUSEADDR. Such a port is bound with it if it is named or no other is left, and a mark (an abstract Unix socket,
which belongs to the same network namespace as ports) tells other agents that it is in use.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from elastic.errors import ConfigError

PORTS_MAX = 4096
"""More ports on one node are a mistake in the command line."""
MASTERS = 3
"""Ports for torch's store, used in turn, so that a late worker of an older generation finds no listener at its port."""
BUSY: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
"""Errors that skip a port of a range: another process has it, or only root may bind it."""
MARK: Final = "elastic-launch port"
"""Prefix of the marks of held ports."""
CLOSED: Final = frozenset(
    {
        psutil.CONN_TIME_WAIT,
        psutil.CONN_FIN_WAIT1,
        psutil.CONN_FIN_WAIT2,
        psutil.CONN_CLOSING,
        psutil.CONN_LAST_ACK,
        psutil.CONN_CLOSE,
    }
)
"""States of a connection whose process has closed it or exited."""


class NodePorts(NamedTuple):
    """Every port of one node: one for each process, those of torch's store, and one for the agent."""

    workers: tuple[int, ...]
    masters: tuple[int, ...]
    link: int


@contextlib.contextmanager
def node_ports(
    wanted: Sequence[int],
    *,
    within: tuple[int, int] | None = None,
    control: int = 0,
    flag: str = "--ctrl-port",
    host: str = "",
) -> Iterator[NodePorts]:
    """Hold every port of one node.

    `wanted` are the ports of the processes, 0 for any. `within` is the range of the other ports, which are taken in its
    order, those of the processes first. `control` is the port for torch's store, which `flag` set; it and the wanted
    ports are held on `host` ("": on every address). Raises `ConfigError`, and holds none, if one of them is busy or
    there are not enough others.
    """
    free, masters = wanted.count(0), 0 if control else MASTERS
    with contextlib.ExitStack() as stack:
        if control:
            stack.enter_context(hold_named(control, flag, host))
        for port in filter(None, wanted):
            stack.enter_context(hold_named(port, "port", host))
        ports = stack.enter_context(hold("", free + masters + 1, within=within))
        others = iter(ports)
        workers = tuple(port or next(others) for port in wanted)
        yield NodePorts(workers, (control,) if control else ports[free:-1], ports[-1])


@contextlib.contextmanager
def hold(host: str, count: int, *, within: tuple[int, int] | None = None) -> Iterator[tuple[int, ...]]:
    """Hold `count` free TCP ports on `host`; "" is every address of this host, IPv4 and IPv6.

    The kernel picks the ports, or, with `within`, they are the first free ones of this range, bounds included. Raises
    `ConfigError`, and holds none, if there are not enough.
    """
    if not 0 <= count <= PORTS_MAX:
        raise ConfigError(f"{count} ports on one node are more than {PORTS_MAX}; use fewer workers on each node")
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []
        try:
            if within is None:
                held += (_take(host, 0, stack) for _ in range(count))
            else:
                held += _taken(host, range(within[0], within[1] + 1), count, stack)
        except OSError as error:
            where = f" on {host}" if host else ""
            raise ConfigError(
                f"need {count} free ports{where}, found {len(held)} ({error.strerror or error}); free some first"
            ) from error
        if len(held) < count:
            raise ConfigError(_too_few(count, len(held), within or (0, 0)))
        yield tuple(map(_port, held))


@contextlib.contextmanager
def hold_named(port: int, flag: str, host: str = "") -> Iterator[None]:
    """Hold the port that `flag` set, on `host` ("": every address).

    Nodes of one host with separate loopback addresses share it: if a worker of one of them listens on every address, as
    torch's store does, another node only marks it. Raises `ConfigError` if another process has it.
    """
    with contextlib.ExitStack() as stack:
        try:
            if not _taken(host, range(port, port + 1), 1, stack):
                if host and _shared(port, host):
                    stack.enter_context(_mark(port, host))
                else:
                    _take(host, port, stack)  # It raises the reason.
        except OSError as error:
            raise ConfigError(
                f"{flag} {port} cannot be used on this machine ({error.strerror or error}); free it, or use "
                f"another {flag}"
            ) from error
        yield


def _taken(host: str, candidates: range, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Take the first free ports, at most `count`, in order; lingering ones only if there are not enough others."""
    held: dict[int, socket.socket] = {}

    def fill(ports: Iterable[int], *, shared: bool) -> None:
        for port in ports:
            if len(held) == count:
                return
            try:
                held[port] = _take(host, port, stack, shared=shared)
            except OSError as error:
                if error.errno not in BUSY:
                    raise

    fill(candidates, shared=False)
    if len(held) < count:
        fill(sorted(_lingering() & {*candidates}), shared=True)
    return [held[port] for port in sorted(held)]


def _take(host: str, port: int, stack: contextlib.ExitStack, *, shared: bool = False) -> socket.socket:
    """Bind one port and mark it until `stack` is closed. Raises `OSError` if it is busy."""
    with contextlib.ExitStack() as mine:
        made = mine.enter_context(bind(host, port, shared=shared))
        mine.enter_context(_mark(_port(made), host))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stack.push(mine.pop_all())
    return made


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _mark(port: int, host: str) -> socket.socket:
    return _bound(socket.AF_UNIX, f"\0{MARK} {port} {host}")


def _shared(port: int, host: str) -> bool:
    """Return whether an agent holds the port only for another address of this host."""
    mark = f"@{MARK} {port} "
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    return bool({line.partition(mark)[2] for line in lines if mark in line} - {"", host})


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a bound TCP socket; host "" is every address of this host, IPv4 and IPv6.

    `shared` lets it bind to a port at which other sockets are bound that do not listen. Raises `OSError`.
    """
    if host:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bound(family, target, kind, protocol, shared=shared)
    try:
        return _bound(socket.AF_INET6, ("::", port), both=True, shared=shared)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _bound(socket.AF_INET, ("0.0.0.0", port), shared=shared)  # This host has no IPv6.


def _bound(
    family: int,
    target: object,
    kind: int = socket.SOCK_STREAM,
    protocol: int = 0,
    *,
    both: bool = False,
    shared: bool = False,
) -> socket.socket:
    made = socket.socket(family, kind, protocol)  # Python's sockets are not inheritable.
    try:
        if both:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(target)  # type: ignore[arg-type]  # getaddrinfo's own address, whatever its family
    except OSError:
        made.close()
        raise
    return made


def _lingering() -> frozenset[int]:
    """Return the ports of this host that have only connections that were closed on this side."""
    closed: set[int] = set()
    alive: set[int] = set()
    for one in psutil.net_connections("tcp"):
        if one.laddr:
            (closed if one.status in CLOSED else alive).add(one.laddr.port)
    return frozenset(closed - alive)


def _too_few(count: int, found: int, within: tuple[int, int]) -> str:
    low, high = within
    hint = "widen --port-range, or free some" if high - low + 1 >= count else f"widen --port-range to {count} ports"
    return f"need {count} free ports in {low}:{high}, found {found}; {hint}"
