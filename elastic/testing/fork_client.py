"""The run's end of a fork server, and the servers that wait for the next run.

Importing torch costs seconds, so a server stays for the next run of this process; it has no replica then and ends with
this process, however that ends.
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
"""One each: several replicas share this machine, and a process with threads cannot fork safely."""

idle: list[ForkServer] = []
"""Those without a replica, for the next run."""


def _close_idle() -> None:
    """End what waits for a next run: there is none."""
    while idle:
        server = idle.pop()
        if server.usable:
            server.close()


atexit.register(_close_idle)


class ForkServer:
    """A fork server and the socket to it."""

    def __init__(self) -> None:
        """Start it; `ready` waits for its imports."""
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
        """What to wait for, for `receive`."""
        return self._control.fileno()

    @property
    def usable(self) -> bool:
        """Whether it runs, and is not the one of the process that forked this one."""
        return self._pid == os.getpid() and self._process.poll() is None

    def receive(self) -> fork_protocol.ForkServerMessage:
        """The next thing that it says. Raises `RunFailed` if it has ended."""
        try:
            packet = self._control.recv(fork_protocol.PACKET_MAX)
        except ConnectionError:
            packet = b""
        if not packet:
            raise RunFailed("the process that starts the replicas ended; what it wrote to stderr says why")
        message: fork_protocol.ForkServerMessage = fork_protocol.said.decode(packet)
        return message

    def start(self, number: int, env: Mapping[str, str]) -> None:
        """Fork a replica; `ReplicaExited` with its number follows."""
        self._send(fork_protocol.StartReplica(number, dict(env), os.getcwd()))

    def signal(self, number: int, signal: int, *, session: bool = False) -> None:
        """Signal a replica, or all of its session. One that has ended is no error."""
        self._send(fork_protocol.SignalReplica(number, signal, session))

    def close(self) -> None:
        """End it, with all replicas, and wait until they are gone."""
        self._control.close()
        self._process.wait()

    def _send(self, message: fork_protocol.RunMessage) -> None:
        try:
            self._control.send(fork_protocol.encode(message))
        except ConnectionError:
            raise RunFailed("the process that starts the replicas is gone") from None


def take_server() -> ForkServer:
    """A server whose imports are done."""
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
