"""Ports that are ours for as long as the node lives: each is held within a block.

A port that was looked for and then let go can be taken by anybody before it is used. Here the sockets stay bound. They
are bound *without* SO_REUSEADDR, so that two agents never get the same port, and have it set *afterwards*, so that the
worker's listening socket (torch's TCPStore sets SO_REUSEADDR) can bind beside ours, which never listens. Linux looks at
the flag of the socket that is already there when another one binds, which is what makes the second step work.

A port where an earlier job met lingers for a minute: Linux keeps its closed connections, and refuses a bind without
SO_REUSEADDR. Such a port is bound with it when it is named or no other is left, and a mark (a name among the abstract
Unix sockets, which belong to the same network namespace as ports) keeps other agents off.
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
"""More than this on one node is a mistake in the command line."""
MASTERS = 3
"""Ports held for torch's store, used in turn, so that a straggler of an older world finds nobody at its own."""
BUSY: Final = frozenset({errno.EADDRINUSE, errno.EACCES})
"""Why a port of a range is passed over: somebody has it, or only root may have it."""
MARK: Final = "elastic-launch port"
"""How the marks of held ports begin."""
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
"""States of a connection whose process has closed it, or is gone."""


class NodePorts(NamedTuple):
    """Every port of one node: one for each process, those of torch's store, and one for the agent itself."""

    workers: tuple[int, ...]
    masters: tuple[int, ...]
    link: int


@contextlib.contextmanager
def node_ports(
    wanted: Sequence[int],
    *,
    within: tuple[int, int] | None = None,
    control: int = 0,
    flag: str = "--ctrl_port",
    host: str = "",
) -> Iterator[NodePorts]:
    """Hold every port of one node.

    `wanted` are the ports of the processes, 0 for any. `within` is the range to take the others from, in its order, the
    processes' first. `control` is the one port that torch's store is to use, as `flag` named it; it and those that are
    wanted are held on `host` ("": on every address). Raises `ConfigError` when one of them is busy or there are not
    enough others; then none is held.
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
    """Hold `count` free TCP ports on `host`; "" is every address of this machine, IPv4 and IPv6.

    The kernel picks the ports, or, with `within`, they are the first free ones from the lower to the upper bound, both
    inside. Raises `ConfigError` when there are not enough; then none is held.
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
    """Hold the one port that was named with `flag`, on `host` ("": every address).

    Nodes of one machine that have loopback addresses of their own share it: where a worker of one of them listens, on
    every address as torch's store does, another one only marks it. Raises `ConfigError` when somebody else has it.
    """
    with contextlib.ExitStack() as stack:
        try:
            if not _taken(host, range(port, port + 1), 1, stack):
                if host and _shared(port, host):
                    stack.enter_context(_mark(port, host))
                else:
                    _take(host, port, stack)  # It says what is wrong.
        except OSError as error:
            raise ConfigError(
                f"{flag} {port} cannot be used on this machine ({error.strerror or error}); free it, or use "
                f"another {flag}"
            ) from error
        yield


def _taken(host: str, candidates: range, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """The first free ports, at most `count`, in their order; those that linger only if there are not enough others."""
    held: dict[int, socket.socket] = {}

    def fill(ports: Iterable[int], *, beside: bool) -> None:
        for port in ports:
            if len(held) == count:
                return
            try:
                held[port] = _take(host, port, stack, beside=beside)
            except OSError as error:
                if error.errno not in BUSY:
                    raise

    fill(candidates, beside=False)
    if len(held) < count:
        fill(sorted(_lingering() & {*candidates}), beside=True)
    return [held[port] for port in sorted(held)]


def _take(host: str, port: int, stack: contextlib.ExitStack, *, beside: bool = False) -> socket.socket:
    """Bind one port and mark it as ours until `stack` is closed; OSError if it is busy."""
    with contextlib.ExitStack() as mine:
        made = mine.enter_context(bind(host, port, beside=beside))
        mine.enter_context(_mark(_port(made), host))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stack.push(mine.pop_all())
    return made


def _port(bound: socket.socket) -> int:
    return int(bound.getsockname()[1])


def _mark(port: int, host: str) -> socket.socket:
    return _bound(socket.AF_UNIX, f"\0{MARK} {port} {host}")


def _shared(port: int, host: str) -> bool:
    """Tell whether an agent holds the port for another address of this machine alone."""
    mark = f"@{MARK} {port} "
    lines = Path("/proc/net/unix").read_text(errors="replace").splitlines()
    return bool({line.partition(mark)[2] for line in lines if mark in line} - {"", host})


def bind(host: str, port: int, *, beside: bool = False) -> socket.socket:
    """A bound TCP socket; host "" is every address of this machine, IPv4 and IPv6.

    `beside` lets it bind where others that do not listen are bound, too. Raises `OSError`.
    """
    if host:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bound(family, target, kind, protocol, beside=beside)
    try:
        return _bound(socket.AF_INET6, ("::", port), both=True, beside=beside)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _bound(socket.AF_INET, ("0.0.0.0", port), beside=beside)  # This machine has no IPv6.


def _bound(
    family: int,
    target: object,
    kind: int = socket.SOCK_STREAM,
    protocol: int = 0,
    *,
    both: bool = False,
    beside: bool = False,
) -> socket.socket:
    made = socket.socket(family, kind, protocol)  # Python's sockets are not inheritable.
    try:
        if both:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if beside:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(target)  # type: ignore[arg-type]  # getaddrinfo's own address, whatever its family
    except OSError:
        made.close()
        raise
    return made


def _lingering() -> frozenset[int]:
    """The ports of this machine where nothing is left but connections that this end has closed."""
    closed: set[int] = set()
    alive: set[int] = set()
    for one in psutil.net_connections("tcp"):
        if one.laddr:
            (closed if one.status in CLOSED else alive).add(one.laddr.port)
    return frozenset(closed - alive)


def _too_few(count: int, found: int, within: tuple[int, int]) -> str:
    low, high = within
    hint = "widen --port_range, or free some" if high - low + 1 >= count else f"widen --port_range to {count} ports"
    return f"need {count} free ports in {low}:{high}, found {found}; {hint}"
