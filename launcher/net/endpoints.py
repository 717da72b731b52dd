"""Endpoints and hosts as text (pure).

No function splits an endpoint at its first colon, so that IPv6 works everywhere.
"""

from __future__ import annotations

import ipaddress
import re

from elastic._text import join_host_port as join_host_port

PORT_MAX = 65535
HOST_LENGTH_MAX = 253
"""The longest name in DNS."""

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


def parse_endpoint(text: str, *, example: int = 2379) -> tuple[str, int]:
    """Parse `host:port` or `[v6]:port`; return the host without brackets, and the port.

    Raises ValueError with one sentence; if the port is missing, it shows the right form with the port `example`.
    """
    bracketed = re.fullmatch(r"\[([^\[\]]*)\]:([0-9]+)", text)
    plain = re.fullmatch(r"([^:\[\]]*):([0-9]+)", text)
    match = bracketed or plain
    if match is None:
        if is_v6(text.strip("[]")):
            raise ValueError(f"{text!r} has no port, or no brackets; write [{text.strip('[]')}]:{example}")
        if ":" in text:
            raise ValueError(f"{text!r} is not host:port")
        if text:
            check_host(text)
        raise ValueError(f"{text!r} has no port; write {text or 'host'}:{example}")
    host, port = match[1], int(match[2])
    if not 1 <= port <= PORT_MAX:
        raise ValueError(f"{text!r}: a port is 1 to {PORT_MAX}")
    if bracketed and not is_v6(host):
        raise ValueError(f"{text!r}: brackets are for IPv6 addresses")
    if not bracketed:
        check_host(host)
    return host, port


def parse_host_port(text: str, *, example: int = 2379) -> tuple[str, int]:
    """Parse `host:port` as `parse_endpoint` does, or a host without a port, with or without brackets (port 0)."""
    bare = bare_host(text)
    if ":" in text and not is_v6(bare):
        return parse_endpoint(text, example=example)
    check_host(bare)
    return bare, 0


def check_host(host: str) -> None:
    """Raise ValueError unless `host` is a valid name or address."""
    if not host:
        raise ValueError("the host is missing")
    if not is_v6(host) and (len(host) > HOST_LENGTH_MAX or not _NAME.fullmatch(host)):
        raise ValueError(f"{host!r} is neither a host name nor an address")


def bare_host(text: str) -> str:
    """Return the host without the brackets of IPv6."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def as_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return `host` as an address, None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_any(host: str) -> bool:
    """Return whether `host` means all addresses of this host: 0.0.0.0 or ::."""
    ip = as_ip(host)
    return ip is not None and ip.is_unspecified


def is_own_loopback(host: str) -> bool:
    """Return whether traffic to `host` cannot leave this host: a loopback address, or the name localhost.

    False for any other name, whatever its address now: it may resolve to another host at the next connection.
    """
    ip = as_ip(host)
    return host.lower() == "localhost" if ip is None else ip.is_loopback


def is_v6(host: str) -> bool:
    """Return whether `host` is an IPv6 address, without brackets."""
    return isinstance(as_ip(host), ipaddress.IPv6Address)
