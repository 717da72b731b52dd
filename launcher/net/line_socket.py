"""A TCP connection that carries short lines, as two callbacks; and the way to one.

No task and no buffer belongs to a connection: who does not read what the kernel has kept for it is dropped. An idle
one costs a descriptor and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Callable
from enum import Enum, auto

from elastic._net import connected_socket
from launcher.net.lines import LineSplitter, LineTooLong

READ_BYTES = 4096
SEND_BUFFER_BYTES = 64 << 10
"""What the kernel keeps for a peer that does not read."""
QUIET_S = 3
"""After so long without a packet the kernel asks whether the other machine is there."""
ASK_AGAIN_S = 1
ASKED_MAX = 3
"""So often; then, QUIET_S + ASKED_MAX * ASK_AGAIN_S after its last packet, the connection is lost."""
UNSENT_MAX_MS = 6000
"""The same for what was sent and not confirmed."""
_ROUND_TRIP_AT = 68
"""Where `struct tcp_info` of Linux has `tcpi_rtt`, in microseconds (tcp(7), linux/tcp.h)."""


class CloseReason(Enum):
    """How a connection ended."""

    CLOSED = auto()
    """The other side closed it, or its kernel did: its process may be dead."""
    LOST = auto()
    """No packet comes through; that says nothing about the process."""
    UNFIT = auto()
    """It was not a peer of ours that spoke, or it did not read."""


class LineSocket:
    """One connection. It owns the socket.

    `heard` is called with each line, `ended` once when the connection is over, unless `close` was called. Neither is
    called from inside `send` or `close`.
    """

    __slots__ = ("_ended", "_heard", "_lines", "_loop", "_socket", "_stalled", "open")

    def __init__(
        self, connected: socket.socket, heard: Callable[[bytes], None], ended: Callable[[CloseReason], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connected
        self._heard = heard
        self._ended = ended
        self._lines = LineSplitter()
        self._stalled = False
        self.open = True
        self._loop.add_reader(connected.fileno(), self._readable)

    def send(self, line: bytes) -> None:
        """Say something. A peer that does not read loses the connection."""
        if not self.open or self._stalled:
            return
        try:
            taken = self._socket.send(line)
        except BlockingIOError:
            taken = 0
        except OSError:
            return  # It is over; the reader is about to be told why.
        if taken < len(line):
            self._stalled = True
            self._loop.call_soon(self._end, CloseReason.UNFIT)

    @property
    def round_trip_s(self) -> float:
        """The smoothed round-trip time that the kernel has measured, in seconds; 0.0 if it is closed."""
        if not self.open:
            return 0.0
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP_AT + 4)
        return int.from_bytes(info[_ROUND_TRIP_AT:], sys.byteorder) / 1e6

    def release(self) -> socket.socket:
        """Hand over the socket, from within `heard`. What came behind that line is dropped, and nobody is called."""
        self.open = False
        self._loop.remove_reader(self._socket.fileno())
        return self._socket

    def close(self) -> None:
        """Close it; what was sent still arrives. Nobody is called any more."""
        if self.open:
            self.release().close()

    def _readable(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
            lines = self._lines.feed(data)
        except (BlockingIOError, InterruptedError):
            return
        except LineTooLong:
            self._end(CloseReason.UNFIT)
            return
        except OSError as error:
            self._end(CloseReason.CLOSED if error.errno in (errno.ECONNRESET, errno.EPIPE) else CloseReason.LOST)
            return
        for line in lines:
            if self.open:
                self._heard(line)
        if not data:
            self._end(CloseReason.CLOSED)

    def _end(self, how: CloseReason) -> None:
        if self.open:
            self.close()
            self._ended(how)


async def connect(address: str, port: int) -> socket.socket:
    """A connection to an address, not a name, that the kernel watches. Raises `OSError`."""
    made = await connected_socket(address, port)
    if _is_self_connected(made):
        made.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens there")
    watch_by_kernel(made)
    return made


def _is_self_connected(connected: socket.socket) -> bool:
    """Tell whether a connection to a port of this machine that nobody listens on met itself, which TCP allows."""
    try:
        return bool(connected.getsockname() == connected.getpeername())
    except OSError:
        return False  # It is over already; the reader is told why.


def watch_by_kernel(connected: socket.socket) -> None:
    """Let the kernel notice that the other machine, or the way to it, is gone."""
    options = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, QUIET_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_AGAIN_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ASKED_MAX),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_MAX_MS),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES),
    )
    for level, name, value in options:
        connected.setsockopt(level, name, value)
