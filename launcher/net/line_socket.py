"""A TCP connection that carries short lines, with two callbacks, and a function to connect.

A connection has no task and no buffer: a peer that does not read what the kernel buffers for it is disconnected. An
idle connection costs only a descriptor.
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
"""The kernel's buffer for a peer that does not read."""
QUIET_S = 3
"""After this time without a packet the kernel probes the other host."""
ASK_AGAIN_S = 1
ASKED_MAX = 3
"""Unanswered probes; the connection is lost QUIET_S + ASKED_MAX * ASK_AGAIN_S after its last packet."""
UNSENT_MAX_MS = 6000
"""The limit, in milliseconds, for data that was sent and not acknowledged."""
_ROUND_TRIP_AT = 68
"""The offset of `tcpi_rtt`, in microseconds, in Linux's `struct tcp_info` (tcp(7), linux/tcp.h)."""


class CloseReason(Enum):
    """Why a connection ended."""

    CLOSED = auto()
    """The other side closed it, or its kernel did: its process may be dead."""
    LOST = auto()
    """No packets arrive; that says nothing about the process."""
    UNFIT = auto()
    """The peer is not an agent, or it did not read."""


class LineSocket:
    """One connection. It owns the socket.

    It calls `heard` with each line, and `ended` once when the connection ends, unless `close` was called. It calls
    neither from inside `send` or `close`.
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
        """Send a line. A peer that does not read is disconnected."""
        if not self.open or self._stalled:
            return
        try:
            taken = self._socket.send(line)
        except BlockingIOError:
            taken = 0
        except OSError:
            return  # The connection has ended; the reader will call `ended` with the reason.
        if taken < len(line):
            self._stalled = True
            self._loop.call_soon(self._end, CloseReason.UNFIT)

    @property
    def round_trip_s(self) -> float:
        """The smoothed round-trip time in seconds that the kernel has measured; 0.0 if the connection is closed."""
        if not self.open:
            return 0.0
        info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ROUND_TRIP_AT + 4)
        return int.from_bytes(info[_ROUND_TRIP_AT:], sys.byteorder) / 1e6

    def release(self) -> socket.socket:
        """Hand over the socket, from within `heard`. Data after that line is dropped; no callback is called."""
        self.open = False
        self._loop.remove_reader(self._socket.fileno())
        return self._socket

    def close(self) -> None:
        """Close the connection; sent data still arrives. No callback is called afterwards."""
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
    """Connect to an address, not a name, with TCP keep-alive. Raises `OSError`."""
    made = await connected_socket(address, port)
    if _is_self_connected(made):
        made.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "no process listens there")
    watch_by_kernel(made)
    return made


def _is_self_connected(connected: socket.socket) -> bool:
    """Return whether a connection to a local port without a listener is connected to itself, which TCP allows."""
    try:
        return bool(connected.getsockname() == connected.getpeername())
    except OSError:
        return False  # The connection has already ended; the reader will report why.


def watch_by_kernel(connected: socket.socket) -> None:
    """Let the kernel detect that the other host, or the network to it, is down."""
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
