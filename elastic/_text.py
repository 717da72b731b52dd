"""Text formatting for people: counts, lists, sizes, times and endpoints (pure)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_SIZES = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def counted(count: int, one: str, many: str = "") -> str:
    """Format a count and its noun: "1 node", "3 nodes". `many` is the plural if it is not `one` with an "s"."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def joined(names: Iterable[str]) -> str:
    """Join names for a sentence: "a", "a and b", "a, b and c"."""
    *first, last = [*names] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def shortened(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join the first `most` names and the number of the others: "a, b and 3 more"; clauses: "a; b; and 3 more"."""
    more = f"{between.strip(', ')} and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def size_text(size_bytes: float) -> str:
    """Format a number of bytes: "12.3 GB", "512 bytes"."""
    for unit, bytes_ in _SIZES:
        if size_bytes >= bytes_:
            return f"{size_bytes / bytes_:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"


def time_text(seconds: float, digits: int = 0) -> str:
    """Format a duration in a suitable unit: "4 s", "3 min", "2.5 h", "5 d".

    `digits` is the number of decimals of seconds; with more than one, a duration below 1 s is in milliseconds: "30 ms".
    """
    if digits > 1 and seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.{digits}f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 360_000 else f"{seconds / 86_400:.0f} d"


def rounded_up(seconds: float, unit_s: int = 1) -> int:
    """Round a remaining time up to whole units, ignoring the rounding errors of floats."""
    return math.ceil(round(seconds, 3) / unit_s)


def join_host_port(host: str, port: int) -> str:
    """Format an endpoint; an IPv6 address gets brackets unless it has them."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_host_port(endpoint: str) -> tuple[str, int]:
    """Split an endpoint of the form that `join_host_port` returns; the host is without brackets."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)
