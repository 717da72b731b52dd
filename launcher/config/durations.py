"""Durations as people write them: `30s`, `10m`, `1h30m`, `2d`, `500ms`; a number without a unit counts seconds."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

DURATION_MAX_S: Final = 30 * 24 * 3600.0
LEASE_TTL_MIN_S: Final = 2
LEASE_TTL_MAX_S: Final = 600
SILENCE_TIMEOUT_MIN_S: Final = 0.1
"""Room for four heartbeats in jobs of up to 50 nodes. Heartbeats more frequent than every 25 ms would cost each node a
noticeable share of a core."""

METAVAR: Final = "DURATION"
FORMS: Final = "10s, 5m, 1h30m, 2d or 500ms; a number without a unit counts seconds"

_UNITS_S: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
"""The units, in the order in which a duration names them, each at most once."""
_WITH_UNITS: Final = re.compile("".join(rf"(?:([0-9]+(?:\.[0-9]+)?){unit})?" for unit in _UNITS_S))


def duration(low_s: float, high_s: float = DURATION_MAX_S) -> Callable[[str], float]:
    """Return a reader of durations from `low_s` to `high_s`, in seconds."""

    def read(text: str) -> float:
        value = _seconds(text)
        if not low_s <= value <= high_s:
            raise ValueError(f"{text.strip()} is not between {duration_text(low_s)} and {duration_text(high_s)}")
        return value

    return read


def lease_ttl(text: str) -> float:
    """Whole seconds, the unit of leases in etcd."""
    try:
        value = duration(LEASE_TTL_MIN_S, LEASE_TTL_MAX_S)(text)
    except ValueError as error:
        if not _is_below(text, LEASE_TTL_MIN_S):
            raise
        raise ValueError(f"{error}; below 2 s one lost packet would look like a node failure") from None
    if value != int(value):
        raise ValueError(f"{text}: etcd counts a lease in whole seconds; use {math.ceil(value)}s")
    return value


def silence_timeout(text: str) -> float:
    """0, which turns heartbeats off, or a time with room for a few heartbeats."""
    value = duration(0, LEASE_TTL_MAX_S)(text)
    if 0 < value < SILENCE_TIMEOUT_MIN_S:
        least = duration_text(SILENCE_TIMEOUT_MIN_S)
        raise ValueError(
            f"{text.strip()} is too short: one retransmitted packet would look like a node failure; use {least} "
            "or more, or 0 to turn heartbeats off"
        )
    return value


def _is_below(text: str, low_s: float) -> bool:
    """Return whether a text is a duration, and shorter than that."""
    try:
        return _seconds(text) < low_s
    except ValueError:
        return False


def _seconds(text: str) -> float:
    """A number, which may be infinite or NaN: every comparison with a limit then fails."""
    try:
        return float(text)
    except ValueError:
        match = _WITH_UNITS.fullmatch(text.strip())
    if match is None or not match[0]:
        raise ValueError(f"{text!r} is not a duration; write {FORMS}")
    return sum(
        float(number) * unit_s for number, unit_s in zip(match.groups(), _UNITS_S.values(), strict=True) if number
    )


def duration_text(seconds: float) -> str:
    """A duration, exact, in the largest unit of which it is a whole number."""
    unit, unit_s = next(((u, s) for u, s in _UNITS_S.items() if seconds and seconds % s == 0), ("s", 1.0))
    return f"{Decimal(repr(seconds / unit_s)).normalize():f}{unit}"
