"""Waiting for a process to listen on a port."""

from __future__ import annotations

import socket
import time
from typing import Final

POLL_MIN_S: Final = 0.005
POLL_MAX_S: Final = 0.1
POLL_PART: Final = 0.05
POLL_EACH_S: Final = 20e-6
"""A rank probes the port again after `POLL_PART` of the time that it has waited, within these bounds, plus
`POLL_EACH_S` for each rank: a port that opens soon costs no delay, and a large world does not flood the host."""
PORT_WAIT_LIMIT_S: Final = 1.0
AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""The environment variable that is "True" if an agent, not rank 0, hosts the store."""


def is_listening(host: str, port: int) -> bool:
    """Return whether a process listens at this address."""
    try:
        with socket.create_connection((host, port), PORT_WAIT_LIMIT_S) as end:
            return bool(end.getsockname() != end.getpeername())  # Linux may connect a socket to itself.
    except (OSError, UnicodeError):  # torch reports a name that no host can have.
        return False


def pause_s(waited_s: float, world_size: int) -> float:
    """Return the seconds until the next probe."""
    return min(max(POLL_PART * waited_s, POLL_MIN_S), POLL_MAX_S) + POLL_EACH_S * world_size


def until_listening(host: str, port: int, world_size: int, limit_s: float) -> bool:
    """Wait up to `limit_s` until a process listens at this address; return whether one does."""
    began = time.monotonic()
    while not is_listening(host, port):
        waited_s = time.monotonic() - began
        if waited_s > limit_s:
            return False
        time.sleep(pause_s(waited_s, world_size))
    return True
