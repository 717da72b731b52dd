"""The agent's end of the local channel: it receives messages from the workers of a node, and sends messages to them.

    server = ChannelServer(path, hear, segments=Segments(), detail=print)
    loop.add_reader(server.fileno(), server.serve)      # or any selector; `serve` never blocks
    ...
    server.send(connection, Stop("b joins"))
    server.close()

A worker first sends its identity (`WorkerHello`), and the kernel reports its process, which must match. No client can
harm the agent: a damaged or too large packet, a flood, an unauthenticated client or a client that does not read only
ends that connection, which one line of `detail` reports. Standard library and msgspec only.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from elastic._net import peer_process
from elastic.channel.messages import (
    PACKET_MAX,
    AgentMessage,
    Segment,
    SegmentDenied,
    SegmentRequest,
    WorkerHello,
    WorkerMessage,
    encode,
    said,
    speaker_name,
)
from elastic.channel.shared_memory import SegmentRefused, Segments
from elastic.errors import ConfigError

PATH_MAX = 107
"""The most bytes of a Unix socket's path (the kernel's `sun_path` has 108, including the final zero byte)."""
CONNECTIONS_MAX = 1024
BACKLOG = 128
PACKETS_AT_ONCE = 64
"""Packets of one connection that are read before the server turns to the others."""
PACKETS_PER_S = 5000.0
BURST = 10000.0
"""Limits of the rate of packets: beyond them the connection is closed. 1,000 steps per second are far below."""
LINES_MAX = 200
"""Lines about bad connections in the life of a server; a client that reconnects forever does not fill the log."""


@dataclass(eq=False)
class WorkerConnection:
    """The connection of one process. `hello` is None until the process has sent it."""

    end: socket.socket
    pid: int
    hello: WorkerHello | None = None
    pidfd: int = -1
    tokens: float = BURST
    filled_at: float = field(default=0.0)

    @property
    def open(self) -> bool:
        """Whether the connection is open."""
        return self.end.fileno() >= 0

    @property
    def name(self) -> str:
        """The name of the process, for people."""
        return f"{speaker_name(self.hello.rank)} (pid {self.pid})" if self.hello is not None else f"pid {self.pid}"

    def show_stacks(self) -> bool:
        """Make the process write the stack traces of its threads to its stderr; return False if it cannot."""
        number = self.hello.stacks_signal if self.hello is not None else 0
        if self.pidfd < 0 or number not in signal.valid_signals():
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except OSError:
            return False
        return True


class ChannelServer:
    """Listens at one path. `serve` calls the callbacks, which may call any method of the server."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        hear: Callable[[WorkerConnection, WorkerMessage], None],
        *,
        segments: Segments,
        detail: Callable[[str], None],
        left: Callable[[WorkerConnection], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen at `path`, in a directory that only this user can enter.

        `hear` receives every message with its connection, `WorkerHello` first, except `SegmentRequest`, which
        `segments` answers. `left` is called when a connection that has sent `WorkerHello` is closed. Raises
        `ConfigError` if the server cannot listen.
        """
        self._on_message = hear
        self._left = left or (lambda connection: None)
        self._segments = segments
        self._detail = detail
        self._clock = clock
        self._lines = 0
        self.path = os.fspath(path)
        """The value of ELASTIC_CHANNEL for workers."""
        self._connections: dict[int, WorkerConnection] = {}
        self._listener = _listen(self.path)
        self._poll = select.epoll()  # An epoll descriptor is readable when anything in it is.
        self._poll.register(self._listener, select.EPOLLIN)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @property
    def connections(self) -> tuple[WorkerConnection, ...]:
        """The connections that have sent `WorkerHello`."""
        return tuple(one for one in self._connections.values() if one.hello is not None)

    def fileno(self) -> int:
        """The descriptor to wait on; -1 if the server is closed."""
        return self._poll.fileno() if not self._poll.closed else -1

    def serve(self) -> None:
        """Process everything that has arrived, without waiting. Call it when `fileno` is readable, or at any time."""
        if self._poll.closed:
            return
        for fd, _ in self._poll.poll(0):
            if self._poll.closed:
                return
            if fd == self._listener.fileno():
                self._accept()
            elif (connection := self._connections.get(fd)) is not None:
                self._read(connection, PACKETS_AT_ONCE)

    def catch_up(self) -> None:
        """Process all messages that were sent before this call, including those of processes that have ended."""
        self.serve()
        for connection in tuple(self._connections.values()):
            self._read(connection, int(BURST))

    def send(self, connection: WorkerConnection, message: AgentMessage, *fds: int) -> bool:
        """Send a message, with descriptors; if that fails, close the connection and return False."""
        if not connection.open:
            return False
        try:
            socket.send_fds(connection.end, [encode(message)], fds, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            self.close_connection(connection, "does not read its messages")
            return False
        except OSError as error:
            self.close_connection(
                connection, "" if isinstance(error, ConnectionError) else f"cannot be reached ({error.strerror})"
            )
            return False
        return True

    def close_connection(self, connection: WorkerConnection, why: str = "") -> None:
        """Close a connection; `why` is logged after the name of the process."""
        fd = connection.end.fileno()
        if fd < 0:
            return
        del self._connections[fd]
        self._poll.unregister(fd)
        connection.end.close()
        if connection.pidfd >= 0:
            os.close(connection.pidfd)
            connection.pidfd = -1
        if why:
            self._say(f"{connection.name} {why}; its channel is closed")
        if connection.hello is not None:
            self._left(connection)

    def close(self) -> None:
        """Close all connections and remove the socket. May be called again."""
        if self._poll.closed:
            return
        for connection in tuple(self._connections.values()):
            self.close_connection(connection)
        self._poll.close()
        self._listener.close()
        self._release_spare()
        Path(self.path).unlink(missing_ok=True)

    # --- connections ----------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(PACKETS_AT_ONCE):
            try:
                end, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._turn_away()
                return  # Otherwise the client has closed it, or memory is short: the next one may succeed.
            self._admit(end)

    def _turn_away(self) -> None:
        """Close a waiting connection, with the descriptor that is reserved for this, when no other is left."""
        self._release_spare()
        with suppress(OSError):  # Another thread has taken the descriptor; the connection waits.
            self._listener.accept()[0].close()
        with suppress(OSError):  # Likewise; the next connection waits too.
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._say("a worker's channel cannot be opened: too many open files (ulimit -n)")

    def _release_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    def _admit(self, end: socket.socket) -> None:
        end.setblocking(False)
        pid, uid = peer_process(end)
        if len(self._connections) >= CONNECTIONS_MAX:
            silent = next((other for other in self._connections.values() if other.hello is None), None)
            if silent is None:
                end.close()
                self._say(f"too many connections ({CONNECTIONS_MAX}): closing that of pid {pid}")
                return
            self.close_connection(silent, "has not identified itself, and there are too many connections")
        connection = WorkerConnection(end, pid, filled_at=self._clock())
        self._connections[end.fileno()] = connection
        self._poll.register(end, select.EPOLLIN)
        if uid not in (os.getuid(), 0):
            self.close_connection(connection, f"belongs to another user ({uid})")

    # --- messages -------------------------------------------------------------------------------------------------

    def _read(self, connection: WorkerConnection, packets: int) -> None:
        for _ in range(packets):
            if not connection.open:
                return
            try:
                data = connection.end.recv(PACKET_MAX + 1)  # The kernel drops descriptors of the client.
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close_connection(connection)
                return
            self._take(connection, data)

    def _take(self, connection: WorkerConnection, data: bytes) -> None:
        now = self._clock()
        connection.tokens = min(connection.tokens + (now - connection.filled_at) * PACKETS_PER_S, BURST) - 1
        connection.filled_at = now
        if connection.tokens < 0:
            self.close_connection(connection, f"sends more than {PACKETS_PER_S:.0f} messages/s")
            return
        if len(data) > PACKET_MAX:
            self.close_connection(connection, f"sent a message of more than {PACKET_MAX} bytes")
            return
        try:
            message = said.decode(data)
        except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors.
            self.close_connection(connection, f"sent an invalid message ({error})")
            return
        if connection.hello is None:
            self._meet(connection, message)
        elif isinstance(message, WorkerHello):
            self.close_connection(connection, "identified itself twice")
        elif isinstance(message, SegmentRequest):
            self._answer(connection, message)
        else:
            self._on_message(connection, message)

    def _meet(self, connection: WorkerConnection, message: WorkerMessage) -> None:
        if not isinstance(message, WorkerHello):
            self.close_connection(connection, "did not identify itself")
            return
        if message.pid != connection.pid:
            self.close_connection(connection, f"claims to be pid {message.pid}")
            return
        for other in self.connections:
            assert other.hello is not None
            if (other.hello.generation, other.hello.local_rank) == (message.generation, message.local_rank):
                self._read(other, int(BURST))  # The previous program of a shell script may have just ended.
                if other.open:
                    self.close_connection(
                        connection, f"claims to be {speaker_name(message.rank)}, which pid {other.pid} already is"
                    )
                    return
        try:
            connection.pidfd = os.pidfd_open(connection.pid)
        except OSError:
            connection.pidfd = -1  # It has ended, or no descriptor is left: its stack traces are not available.
        connection.hello = message
        self._on_message(connection, message)

    def _answer(self, connection: WorkerConnection, wanted: SegmentRequest) -> None:
        try:
            fd, size = self._segments.want(wanted.name, wanted.size)
        except SegmentRefused as refused:
            self.send(connection, SegmentDenied(str(refused)))
        else:
            self.send(connection, Segment(size), fd)

    def _say(self, text: str) -> None:
        self._lines += 1
        if self._lines <= LINES_MAX:
            self._detail(text)
        elif self._lines == LINES_MAX + 1:
            self._detail("further lines about the workers' channel are left out")


def _listen(path: str) -> socket.socket:
    if len(os.fsencode(path)) > PATH_MAX:
        raise ConfigError(
            f"the workers' channel {path} has a path of more than {PATH_MAX} bytes; set TMPDIR to a shorter directory"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"the workers' channel {path} cannot be opened ({error.strerror}); set TMPDIR to another directory"
        ) from error
    return listener
