"""The agent's listener, which says who it is.

Whoever connects gets one line (`launcher.wire.link_messages.Greeting`). Until links are made (`hand_to`), nothing is
read and the connection is closed; who has learned the secret of the job can then go on to a link
(`launcher.peers.inbound_links`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

from elastic.errors import ConfigError
from launcher.net.acceptor import Acceptor
from launcher.net.addresses import is_loopback
from launcher.net.endpoints import as_ip
from launcher.net.ports import bind
from launcher.wire.link_messages import Greeting, greeting_line

BACKLOG = 128
"""Connections that wait or are taken in one round of the loop; more of a flood waits outside."""
PAUSE_S = 1.0
"""Before the next connection is taken when this process has no descriptor or memory for one."""


class PeerListener:
    """Listens until `close`. `port` is where."""

    def __init__(self, host: str, job_id: str, node: str, port: int = 0) -> None:
        """Listen on every address of this machine (`host` may be ""), or on `host` alone if it is of the loopback.

        A port that is named is one that this process holds (`launcher.net.ports`); 0 is any.
        """
        local = host if as_ip(host) is not None else "127.0.0.1"
        try:
            bound = bind(local if host and is_loopback(host) else "", port, beside=port != 0)
        except OSError as error:
            raise ConfigError(f"this agent cannot listen on any port ({error.strerror}); free some first") from error
        bound.setblocking(False)
        bound.listen(BACKLOG)
        line = greeting_line(Greeting(job_id, node))
        self._take: Callable[[socket.socket], None] = lambda connected: send_rejection(connected, line)
        self.address = str(bound.getsockname()[0])
        self.port = int(bound.getsockname()[1])
        self._acceptor = Acceptor(bound, lambda connected: self._take(connected), room=lambda: BACKLOG, pause_s=PAUSE_S)

    def hand_to(self, take: Callable[[socket.socket], None]) -> None:
        """Give every connection that comes from now on to `take`, which owns it and greets it."""
        self._take = take

    def close(self) -> None:
        """Listen no more."""
        self._acceptor.close()


def send_rejection(connected: socket.socket, line: bytes) -> None:
    """Say a line that fits into every socket's buffer, and be done."""
    with suppress(OSError):  # Who connected is gone already.
        connected.send(line)
    connected.close()
