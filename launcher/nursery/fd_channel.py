"""A socket pair's end that carries lines and descriptors, and never blocks. Standard library only."""

from __future__ import annotations

import errno
import os
import socket
from array import array
from collections import deque
from collections.abc import Sequence

from launcher.net.lines import LineSplitter, LineTooLong
from launcher.nursery.protocol import MESSAGE_MAX, WireError

READ_BYTES = 1 << 16
FDS_MAX = 253
"""Descriptors in one message of a Unix socket (the kernel's SCM_MAX_FD)."""


class ChannelClosed(EOFError):
    """The other end is closed."""


class FdChannel:
    """One end. What the socket does not accept yet is queued here."""

    def __init__(self, end: socket.socket) -> None:
        """Take over a connected Unix stream socket."""
        end.setblocking(False)
        end.set_inheritable(False)
        self._end = end
        self._lines = LineSplitter(MESSAGE_MAX)
        self._parcels: deque[tuple[bytes, list[int]]] = deque()
        """Queued bytes, and the descriptors to close once they are sent."""
        self.fds: deque[int] = deque()
        """Received descriptors, in order; they arrive no later than the line that they belong to."""

    def fileno(self) -> int:
        """The descriptor to poll; -1 once closed."""
        return self._end.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something is left to send."""
        return bool(self._parcels)

    def put(self, line: bytes, fds: Sequence[int] = ()) -> None:
        """Queue a line with descriptors, which are closed here once they are sent. `flush` sends."""
        for index in range(0, len(fds), FDS_MAX):  # Descriptors travel with at least one byte.
            self._parcels.append((line[:1], list(fds[index : index + FDS_MAX])))
            line = line[1:]
        self._parcels.append((line, []))

    def flush(self) -> None:
        """Send what the socket accepts now. Raises `ChannelClosed`."""
        try:
            while self._parcels:
                data, fds = self._parcels[0]
                sent = socket.send_fds(self._end, [data], fds)
                _close_all(fds)
                self._parcels.popleft()
                if rest := data[sent:]:
                    self._parcels.appendleft((rest, []))
        except BlockingIOError:
            return
        except ConnectionError as error:
            raise ChannelClosed from error

    def take(self) -> list[bytes]:
        """Return the lines that one read completes, often none.

        Raises `ChannelClosed`, `WireError` for an endless line, `OSError` if descriptors were lost in transit.
        `socket.recv_fds` is not used: in Python 3.11 it drops the flag that keeps one worker's descriptors from the
        others.
        """
        space = socket.CMSG_SPACE(FDS_MAX * array("i").itemsize)
        try:
            data, ancillary, flags, _ = self._end.recvmsg(READ_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return []
        except ConnectionError as error:
            raise ChannelClosed from error
        for level, kind, raw in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array("i")
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
                self.fds += fds
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "too many workers for the limit of open files (ulimit -n)")
        if not data:
            raise ChannelClosed
        try:
            return self._lines.feed(data)
        except LineTooLong as error:
            raise WireError(str(error)) from error

    def close(self) -> None:
        """Close the socket and every descriptor that is in transit."""
        self._end.close()
        for _, fds in self._parcels:
            _close_all(fds)
        self._parcels.clear()
        while self.fds:
            os.close(self.fds.popleft())


def _close_all(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
