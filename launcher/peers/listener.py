"""The agent's listener, which identifies its job and node.

Each client gets one line (`launcher.wire.link_messages.Greeting`). Until links are served (`hand_to`), the listener
reads nothing and closes the connection; after that a client that knows the secret of the job can make a link
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
"""Length of the kernel's queue, and connections that are accepted in one iteration of the loop."""
PAUSE_S = 1.0
"""Pause before the next connection is accepted if this process is out of descriptors or memory."""


class PeerListener:
    """Listens on `port` until `close`."""

    def __init__(self, host: str, job_id: str, node: str, port: int = 0) -> None:
        """Listen on every address of this host (`host` may be ""), or only on `host` if it is a loopback address.

        `port` is a port that this process holds (`launcher.net.ports`), or 0 for any. Raises `ConfigError` if it cannot
        listen.
        """
        local = host if as_ip(host) is not None else "127.0.0.1"
        try:
            bound = bind(local if host and is_loopback(host) else "", port, shared=port != 0)
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
        """Pass each new connection to `take`, which owns it and greets the client."""
        self._take = take

    def close(self) -> None:
        """Stop listening."""
        self._acceptor.close()


def send_rejection(connected: socket.socket, line: bytes) -> None:
    """Send a line that fits into every socket's buffer, and close the connection."""
    with suppress(OSError):  # The client has disconnected already.
        connected.send(line)
    connected.close()
