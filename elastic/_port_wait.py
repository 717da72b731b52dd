"""Whether a process listens at a port yet, and how long to wait for one."""

from __future__ import annotations

import socket
import time
from typing import Final

POLL_MIN_S: Final = 0.005
POLL_MAX_S: Final = 0.1
POLL_PART: Final = 0.05
POLL_EACH_S: Final = 20e-6
"""Each knocks again after `POLL_PART` of the time it has waited, within these bounds, and so much more for each rank:
a quick meeting costs nothing, and a large world is no flood."""
PORT_WAIT_LIMIT_S: Final = 1.0
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""The variable that is "True" where an agent, and not rank 0, hosts the store."""


def is_listening(host: str, port: int) -> bool:
    """Tell whether somebody listens there."""
    try:
        with socket.create_connection((host, port), PORT_WAIT_LIMIT_S) as end:
            return bool(end.getsockname() != end.getpeername())  # Linux may connect a socket to itself.
    except (OSError, UnicodeError):  # A name that no host can have is torch's to refuse.
        return False


def pause_s(waited_s: float, world_size: int) -> float:
    """How long to wait before the next knock."""
    return min(max(POLL_PART * waited_s, POLL_MIN_S), POLL_MAX_S) + POLL_EACH_S * world_size


def until_listening(host: str, port: int, world_size: int, limit_s: float) -> bool:
    """Wait until somebody listens there, `limit_s` at most; whether somebody does."""
    began = time.monotonic()
    while not is_listening(host, port):
        waited_s = time.monotonic() - began
        if waited_s > limit_s:
            return False
        time.sleep(pause_s(waited_s, world_size))
    return True
