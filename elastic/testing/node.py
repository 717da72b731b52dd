"""One node of a run: the agent's end of its workers' local channel, and their memory."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec

from elastic import channel

CONNECTIONS_MAX = 256

Heard = Callable[[channel.Hello, channel.Said], None]


class Node:
    """A node by its number. Its memory lives as long as the node, whatever becomes of its workers."""

    def __init__(self, number: int, folder: Path, selector: selectors.BaseSelector, heard: Heard) -> None:
        """Listen. `heard` is called with each message and who says it; the selector's data is what to call."""
        self.number = number
        self.name = f"node{number}-{number:04x}"
        self.path = folder / f"{self.name}.sock"
        self._heard = heard
        self._selector = selector
        self._ends: dict[socket.socket, channel.Hello | None] = {}
        self._memory: dict[str, tuple[int, int]] = {}
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(str(self.path))
        self._listening.listen(CONNECTIONS_MAX)
        self._listening.setblocking(False)
        selector.register(self._listening, selectors.EVENT_READ, self._accept)

    def tell(self, generation: int, rank: int, message: channel.Told) -> bool:
        """Say something to a worker; False if it has never connected or has hung up."""
        told = False
        for end, hello in self._ends.items():
            if hello is not None and (hello.generation, hello.rank) == (generation, rank):
                with contextlib.suppress(OSError):
                    end.send(channel.encode(message))
                    told = True
        return told

    def close(self) -> None:
        """Let go of the socket and of the memory. A second call does nothing."""
        if self._listening.fileno() < 0:
            return
        for end in list(self._ends):
            self._hang_up(end)
        self._selector.unregister(self._listening)
        self._listening.close()
        self.path.unlink(missing_ok=True)
        for fd, _ in self._memory.values():
            os.close(fd)
        self._memory.clear()

    def _accept(self) -> None:
        end, _ = self._listening.accept()
        end.setblocking(False)
        self._ends[end] = None
        self._selector.register(end, selectors.EVENT_READ, lambda: self._read(end))

    def _read(self, end: socket.socket) -> None:
        """Take one message; whoever says what cannot be understood is hung up on."""
        try:
            data = end.recv(channel.PACKET_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(end)
            return
        try:
            message = channel.said.decode(data)
        except msgspec.MsgspecError:
            self._hang_up(end)
            return
        if isinstance(message, channel.Hello):
            self._ends[end] = message
        hello = self._ends[end]
        if hello is None:
            self._hang_up(end)
        elif isinstance(message, channel.Wanted):
            self._give(end, message)
        else:
            self._heard(hello, message)

    def _give(self, end: socket.socket, wanted: channel.Wanted) -> None:
        fd, size = self._memory.get(wanted.name, (-1, 0))
        if wanted.size and wanted.size != size:
            if fd >= 0:
                os.close(fd)
            fd, size = os.memfd_create(wanted.name[:200], os.MFD_CLOEXEC), wanted.size
            os.ftruncate(fd, size)
            self._memory[wanted.name] = (fd, size)
        with contextlib.suppress(OSError):
            if fd < 0:
                end.send(channel.encode(channel.Refused(wanted.name, "there is no such memory on this node")))
            else:
                fds = array("i", [fd])
                answer = channel.encode(channel.Segment(wanted.name, size))
                end.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])

    def _hang_up(self, end: socket.socket) -> None:
        del self._ends[end]
        self._selector.unregister(end)
        end.close()
