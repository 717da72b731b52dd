"""Ports that are ours for as long as the node lives.

A port that was looked for and then let go can be taken by anybody before it is used. Here the sockets stay bound. They
are bound *without* SO_REUSEADDR, so that two agents never get the same port, and have it set *afterwards*, so that the
worker's listening socket (torch's TCPStore sets SO_REUSEADDR) can bind beside ours, which never listens. Linux looks at
the flag of the socket that is already there when another one binds, which is what makes the second step work.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from types import TracebackType

from elastic.errors import ConfigError

PORTS_MAX = 4096
"""More than this on one node is a mistake in the command line."""


class HeldPorts:
    """Ports that this process holds until `close`. They are not listening and no child inherits them."""

    def __init__(self, sockets: tuple[socket.socket, ...]) -> None:
        """Take over sockets that are bound."""
        self._sockets = sockets
        self.ports: tuple[int, ...] = tuple(int(held.getsockname()[1]) for held in sockets)

    def close(self) -> None:
        """Let go of every port. A second call does nothing."""
        for held in self._sockets:
            held.close()

    def __enter__(self) -> HeldPorts:
        """Hold the ports for the length of a `with` block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let go of every port."""
        self.close()


def hold(host: str, count: int, *, first: int = 0) -> HeldPorts:
    """Hold `count` free TCP ports on `host`; "" is every address of this machine, IPv4 and IPv6.

    The kernel picks the ports, or, with `first`, they are the `count` ports from there on. Raises `ConfigError` when
    there are not enough; then none is held.
    """
    if not 0 <= count <= PORTS_MAX:
        raise ConfigError(f"{count} ports on one node are more than {PORTS_MAX}; use fewer workers on each node")
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            held.append(_bind(host, first + len(held) if first else 0))
    except OSError as error:
        for one in held:
            one.close()
        raise ConfigError(_refusal(host, count, len(held), first, error)) from error
    for one in held:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return HeldPorts(tuple(held))


def hold_these(ports: Sequence[int]) -> HeldPorts:
    """Hold exactly these ports on every address of this machine; 0 is any free one.

    Raises `ConfigError` that names the first that somebody else has; then none is held.
    """
    held: list[socket.socket] = []
    try:
        for port in ports:
            try:
                held.append(_bind("", port))
            except OSError as error:
                reason = error.strerror or str(error)
                text = f"port {port} of this machine cannot be had ({reason}); free it, or name another"
                raise ConfigError(text) from error
    except ConfigError:
        for one in held:
            one.close()
        raise
    for one in held:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return HeldPorts(tuple(held))


def _bind(host: str, port: int) -> socket.socket:
    if host:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bound(family, target, kind, protocol)
    try:
        return _bound(socket.AF_INET6, ("::", port), both=True)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        return _bound(socket.AF_INET, ("0.0.0.0", port))  # This machine has no IPv6.


def _bound(
    family: int, target: object, kind: int = socket.SOCK_STREAM, protocol: int = 0, *, both: bool = False
) -> socket.socket:
    made = socket.socket(family, kind, protocol)  # Python's sockets are not inheritable.
    try:
        if both:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(target)  # type: ignore[arg-type]  # getaddrinfo's own address, whatever its family
    except OSError:
        made.close()
        raise
    return made


def _refusal(host: str, count: int, found: int, first: int, error: OSError) -> str:
    where = f" in {first}:{first + count - 1}" if first else ""
    reason = error.strerror or str(error)
    return f"need {count} free ports{where} on {host or 'this machine'}, found {found} ({reason}); free some first"
