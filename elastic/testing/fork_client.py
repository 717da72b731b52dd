"""The client of a fork server, and the idle servers for the next run.

Importing torch takes seconds, so a server remains for the next run of this process. It has no replica then, and ends
with this process, however that ends.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from elastic.errors import RunFailed
from elastic.testing import fork_protocol

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1: several replicas share this machine, and a process with threads cannot fork safely."""

idle: list[ForkServer] = []
"""Servers without a replica, for the next run."""


def _close_idle() -> None:
    """Close the idle servers at exit."""
    while idle:
        server = idle.pop()
        if server.usable:
            server.close()


atexit.register(_close_idle)


class ForkServer:
    """A fork server and the socket to it."""

    def __init__(self) -> None:
        """Start the server; its first message is `ImportsDone`."""
        self._pid = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "elastic.testing.fork_server", str(theirs.fileno())],
                env={
                    **os.environ,
                    **dict.fromkeys(THREADS, "1"),
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has a message."""
        return self._control.fileno()

    @property
    def usable(self) -> bool:
        """Whether the server runs, and this process started it rather than a parent."""
        return self._pid == os.getpid() and self._process.poll() is None

    def receive(self) -> fork_protocol.ForkServerMessage:
        """Receive the next message. Raises `RunFailed` if the server has exited."""
        try:
            packet = self._control.recv(fork_protocol.PACKET_MAX)
        except ConnectionError:
            packet = b""
        if not packet:
            raise RunFailed("the fork server of the replicas exited; see its stderr")
        message: fork_protocol.ForkServerMessage = fork_protocol.server_messages.decode(packet)
        return message

    def start(self, number: int, env: Mapping[str, str]) -> None:
        """Fork a replica. `ReplicaExited` with its number follows."""
        self._send(fork_protocol.StartReplica(number, dict(env), os.getcwd()))

    def signal(self, number: int, signal: int, *, session: bool = False) -> None:
        """Signal a replica, or its whole session; no error if it has exited."""
        self._send(fork_protocol.SignalReplica(number, signal, session))

    def close(self) -> None:
        """End the server and all its replicas, and wait for them."""
        self._control.close()
        self._process.wait()

    def _send(self, message: fork_protocol.RunMessage) -> None:
        try:
            self._control.send(fork_protocol.encode(message))
        except ConnectionError:
            raise RunFailed("the fork server of the replicas has exited; see its stderr") from None


def take_server() -> ForkServer:
    """Return an idle server, or a new one after its imports."""
    while idle:
        server = idle.pop()
        if server.usable:
            return server
    server = ForkServer()
    try:
        server.receive()
    except BaseException:
        server.close()
        raise
    return server
