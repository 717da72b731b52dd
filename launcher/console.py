"""The agent's stdout and stderr, written so that a terminal that stands still never stops the agent.

A blocked terminal (Ctrl-S, a pager, a slow ssh) gets a bounded buffer; what does not fit is left out on the screen and
counted, and one line says so when the screen moves again. So it is with a file on a disk that is full. The logs are
complete in any case.

Non-blocking mode belongs to the open file that we share with the shell and with other agents, so it is not touched:
terminals and pipes are opened once more for ourselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import stat
import time

BUFFER_BYTES = 1 << 20
"""What waits for a blocked console; more is left out."""

CLOSE_LIMIT_S = 0.5
"""How long `close` waits for a blocked console to take the rest."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the disk on which our output lies, or in the file."""

CAREFUL_BYTES = 512
"""Bytes written at once where only poll(2) says that there is room (a terminal that cannot be opened again)."""


class Console:
    """One output of the agent. Bytes go out at once and unchanged, partial lines too."""

    def __init__(self, fd: int) -> None:
        """Write to what `fd` is. The descriptor itself stays open and as it is."""
        self._fd: int | None = None
        self._plain = False  # A write cannot block for long: a file, /dev/null.
        self._careful = False
        self._socket: socket.socket | None = None
        self._waiting = bytearray()
        self._left_out = 0
        self._watched: asyncio.AbstractEventLoop | None = None
        self._at_line_start = True
        self.is_terminal = False
        self._open(fd)

    def write(self, data: bytes) -> None:
        """Show bytes as soon as the console takes them. Never blocks."""
        if self._fd is None or not data:
            return
        self._at_line_start = data.endswith(b"\n")
        if len(self._waiting) + len(data) > BUFFER_BYTES:
            self._flush()
        if self._fd is not None and len(self._waiting) + len(data) > BUFFER_BYTES:
            self._left_out += len(data)
            return
        self._waiting += data
        if self._watched is None:
            self._flush()

    @property
    def at_line_start(self) -> bool:
        """Whether what was shown last ended its line."""
        return self._at_line_start

    def write_line(self, text: str) -> None:
        """Show a line of our own, on a line of its own even after a worker's unfinished progress bar."""
        start = "" if self._at_line_start else "\n"
        self.write(f"{start}{text}\n".encode(errors="replace"))

    def close(self) -> None:
        """Let go, after giving a blocked console a moment to take the rest."""
        until_s = time.monotonic() + CLOSE_LIMIT_S
        while self._fd is not None and self._waiting and time.monotonic() < until_s:
            _has_room(self._fd, max(0.0, until_s - time.monotonic()))
            self._flush()
        self._let_go()

    def _open(self, fd: int) -> None:
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            return  # Closed by whoever started us: nothing is shown.
        self.is_terminal = os.isatty(fd)
        if stat.S_ISSOCK(mode):
            self._socket = socket.socket(fileno=os.dup(fd))
            self._fd = self._socket.fileno()
            return
        if stat.S_ISFIFO(mode) or self.is_terminal:
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._fd = os.open(f"/proc/self/fd/{fd}", flags)
                return
            self._careful = True
        else:
            self._plain = True
        self._fd = os.dup(fd)

    def _send(self, fd: int, data: memoryview) -> int:
        if self._socket is not None:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        if self._careful:
            if not _has_room(fd, 0):
                raise BlockingIOError
            data = data[:CAREFUL_BYTES]
        return os.write(fd, data)

    def _flush(self) -> None:
        fd = self._fd
        if fd is None:
            return
        try:
            while self._waiting:
                with memoryview(self._waiting) as view:
                    sent = self._send(fd, view)
                del self._waiting[:sent]
                if not self._waiting and self._left_out:
                    text = f"\n[elastic-launch] the console stood still: {self._left_out} bytes are only in the logs\n"
                    self._waiting += text.encode()
                    self._left_out = 0
        except BlockingIOError:
            self._watch(fd)
        except OSError as error:
            if error.errno in FULL:  # There may be room again.
                self._left_out += len(self._waiting)
                self._waiting.clear()
                return
            self._let_go()  # The reader or the terminal is gone: the job goes on, the logs have everything.
        else:
            self._unwatch()

    def _watch(self, fd: int) -> None:
        if self._watched is not None or self._plain:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # No loop yet: the next write or `close` tries again.
        loop.add_writer(fd, self._flush)
        self._watched = loop

    def _unwatch(self) -> None:
        if self._watched is not None and self._fd is not None and not self._watched.is_closed():
            self._watched.remove_writer(self._fd)
        self._watched = None

    def _let_go(self) -> None:
        self._unwatch()
        self._waiting.clear()
        if self._socket is not None:
            self._socket.close()
        elif self._fd is not None:
            os.close(self._fd)
        self._fd = self._socket = None


def _has_room(fd: int, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(wait_s * 1000))
