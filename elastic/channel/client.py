"""The worker's end of the channel to its agent.

A worker connects at its first use of the library, to the socket in ELASTIC_CHANNEL. The client never blocks and never
raises, because training must not depend on it. Standard library and msgspec only.
"""

from __future__ import annotations

import array
import os
import select
import socket
from collections.abc import Mapping

from elastic import environment
from elastic.channel.messages import (
    PACKET_MAX,
    SERVERS_FROM,
    VARIABLE,
    AgentMessage,
    PlannedStopRequest,
    Segment,
    SegmentDenied,
    SegmentRequest,
    WorkerHello,
    WorkerMessage,
    encode,
    told,
)
from elastic.errors import ConfigError


class ChannelClient:
    """The worker's end of the channel. Only the process that connected can use it; in its forks it does nothing.

    All threads may call `send`; only one thread may use the other methods.
    """

    def __init__(self, path: str, hello: WorkerHello) -> None:
        """Connect to the agent and send `hello`. Raises `OSError` if no process listens at `path`."""
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.getpid()
        self._stop: PlannedStopRequest | None = None
        self._answer: tuple[Segment | SegmentDenied, int] | None = None
        self._waits = False
        self._owed = 0
        """Requests for memory that have no answer yet. Answers come in the order of the requests."""
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        self._poll = poller.poll
        self.send(hello)

    def send(self, message: WorkerMessage) -> bool:
        """Send a message without waiting; return False if the agent does not accept it now, or is gone."""
        end = self._socket  # Another thread may close the connection at this moment.
        if end is None or os.getpid() != self._pid:
            return False
        try:
            end.send(encode(message))
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        return True

    def stop_asked(self) -> PlannedStopRequest | None:
        """Return the agent's request for a planned stop, None without one. Takes less than 1 µs: called every step."""
        if self._stop is None and self._poll(0):
            self._on_message()
        return self._stop

    def segment(self, name: str, size: int, timeout_s: float = 10.0) -> tuple[int, int] | str:
        """Request a segment: return its descriptor, which the caller must close, and its size, or why there is none."""
        if not self.send(SegmentRequest(name, size)):
            return "the agent does not answer"
        self._owed += 1
        self._waits, self._answer = True, None
        while self._answer is None:
            if self._socket is None or not self._poll(timeout_s * 1000):
                self._waits = False
                return "the agent does not answer"
            self._on_message()
        self._waits = False
        answer, fd = self._answer
        if isinstance(answer, SegmentDenied):
            return answer.why
        return (fd, answer.size) if fd >= 0 else "this worker has too many open files (ulimit -n)"

    def close(self) -> None:
        """Close the connection."""
        end, self._socket = self._socket, None
        self._poll = select.poll().poll  # Polls nothing: another file may soon have the descriptor of the socket.
        if end is not None:
            end.close()

    def _on_message(self) -> None:
        """Take all messages that have arrived, without waiting."""
        while (end := self._socket) is not None and os.getpid() == self._pid:
            try:
                data, fds = _receive(end)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            message = _understood(data)
            if message is None:
                _close(fds)
                self.close()
                return
            if isinstance(message, PlannedStopRequest):
                self._stop = message
                continue
            self._owed -= 1
            if self._waits and not self._owed:
                self._answer = (message, fds[0] if fds else -1)
            else:  # The answer is too late: the caller has given up.
                _close(fds)


def _understood(data: bytes) -> AgentMessage | None:
    """Decode a message; None if the agent has closed the connection or has an incompatible version."""
    try:
        return told.decode(data) if data else None
    except ValueError:  # msgspec's own errors are ValueErrors.
        return None


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _receive(end: socket.socket) -> tuple[bytes, list[int]]:
    """Read a packet and its descriptors. `socket.recv_fds` ignores its flags, so children would inherit them."""
    space = socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = end.recvmsg(PACKET_MAX, space, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return data, list(fds)


_ends: dict[int, ChannelClient | None] = {}
"""The client of this process, by its pid, so that a fork has none."""


def hello(environ: Mapping[str, str], *, stacks_signal: int) -> WorkerHello:
    """Return the identity of this process. Raises `ConfigError` if its environment no longer contains it."""
    own = environment.identity(environ)
    return WorkerHello(
        rank=SERVERS_FROM + own.number if own.server else own.number,
        local_rank=own.slot,
        pid=os.getpid(),
        generation=own.generation,
        stacks_signal=stacks_signal,
    )


def connected_client() -> ChannelClient | None:
    """The client that this process already has, None if it has not used the library."""
    return _ends.get(os.getpid())


def channel_client(environ: Mapping[str, str], *, stacks_signal: int = 0) -> ChannelClient | None:
    """The client of this process, connected at the first call; None outside elastic-launch and in forked processes.

    The `stacks_signal` of the first call counts.
    """
    pid = os.getpid()
    if pid not in _ends:
        _ends[pid] = None
        if not any(end is not None for end in _ends.values()) and environ.get(VARIABLE):
            try:
                _ends[pid] = ChannelClient(environ[VARIABLE], hello(environ, stacks_signal=stacks_signal))
            except (OSError, ConfigError):
                return None  # The variables are those of an earlier agent, or the script has changed them.
    return _ends[pid]
