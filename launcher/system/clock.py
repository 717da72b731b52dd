"""The clock that also runs while the host is suspended."""

from __future__ import annotations

import time


def boottime() -> float:
    """Return the agent's clock, in seconds: it continues while the host is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
