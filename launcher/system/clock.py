"""The clock of this machine that also runs while it sleeps."""

from __future__ import annotations

import time


def boottime() -> float:
    """The agent's clock, in seconds: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
