"""The agent's stdout and stderr, written so that a blocked terminal never stops the agent.

A blocked terminal (Ctrl-S, a pager, a slow ssh) gets a bounded buffer; what does not fit is dropped from the screen and
counted, and one line reports it when the screen moves again. The logs are complete in any case.

A separate process writes a file (`launcher.logs.stdio`), through a pipe. The file must be complete, so the readers of
workers' output wait while that pipe is `paused`; the process makes sure that this does not last.

Non-blocking mode belongs to the open file that we share with the shell and with other agents, so it is not changed:
terminals and pipes are opened once more for this process.
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
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from launcher.logs.json_format import JsonFormatter, Severity
from launcher.system import descriptors

BUFFER_BYTES = 1 << 20
"""Bytes that may wait for a blocked console; more is dropped."""

FILE_BUFFER_BYTES = 8 << 20
"""Bytes that may wait for a file: the output that exiting workers have left in their pipes is not held back."""

CLOSE_LIMIT_S = 0.5
"""How long `close` waits for a blocked console to take the rest."""

FILE_CLOSE_LIMIT_S = 3.0
"""How long `close` waits for a file: the process that writes it needs a second to detect a stalled disk."""

FILE_STILL_S = 3.0
"""How long that process may read nothing before the agent stops waiting: it is suspended, or waits for memory."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No room on the disk of the output file, or in the file."""

CAREFUL_BYTES = 512
"""Bytes written at once where only poll(2) says that there is room (a terminal that cannot be opened again)."""


class TerminalOverlay(Protocol):
    """An object that draws on the same terminal, and lets the text through."""

    def text(self, data: bytes) -> bytes:
        """Return the bytes to write in order to show `data`."""

    def lost(self) -> None:
        """Note that bytes were dropped instead of written."""


STALLED = "the console was blocked: %d bytes are only in the logs"


class Console:
    """One output of the agent. Bytes are written immediately and unchanged, including partial lines."""

    def __init__(
        self, fd: int, give_back: Callable[[], None] | None = None, lines: JsonFormatter | None = None
    ) -> None:
        """Write to the file or terminal of `fd`. The descriptor itself stays open and unchanged.

        `give_back`: `fd` is a pipe to the process that writes a file. If that is killed, this makes `fd` the file
        again. With `lines` everything written is whole lines of JSON, notices included, and no kill leaves part of a
        line that a pipe takes at once (4 kB).
        """
        self._whole = lines is not None
        self._notice = notice_line(lines)
        self._given = fd
        self._give_back = give_back
        self._room = BUFFER_BYTES if give_back is None else FILE_BUFFER_BYTES
        self._go_on: list[Callable[[], None]] = []
        self._patience: asyncio.TimerHandle | None = None
        self._moved = self._still = False
        self._fd: int | None = None
        self._plain = False  # A write cannot block for long: a file, /dev/null.
        self._careful = False
        self._socket: socket.socket | None = None
        self._waiting = bytearray()
        self._left_out = 0
        self._watched: asyncio.AbstractEventLoop | None = None
        self.at_line_start = True
        """Whether the last output ended its line."""
        self.is_terminal = False
        self.around: TerminalOverlay | None = None
        self._open(fd)

    def write(self, data: bytes) -> None:
        """Show bytes as soon as the console takes them. Never blocks."""
        if self._fd is None or not data:
            return
        self.at_line_start = data.endswith(b"\n")
        self.write_raw(data if self.around is None else self.around.text(data), len(data))

    def write_raw(self, data: bytes, text_bytes: int = 0) -> None:
        """Write bytes that are not text, except for `text_bytes` of them, which count as missing if dropped."""
        if self._fd is None or not data:
            return
        if len(self._waiting) + len(data) > self._room:
            self._flush()
        in_order = self._give_back is not None and self._left_out  # A file is marked where something is missing.
        if self._fd is not None and (in_order or len(self._waiting) + len(data) > self._room):
            self._left_out += text_bytes
            if self.around is not None:
                self.around.lost()
            return
        self._waiting += data
        if self._watched is None:
            self._flush()

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for a blocked console."""
        return bool(self._waiting)

    @property
    def paused(self) -> bool:
        """Whether the readers of workers' output should pause; `on_writable` reports when they may continue."""
        return self._give_back is not None and self._watched is not None and not self._still

    def on_writable(self, go_on: Callable[[], None]) -> None:
        """Call back once when it is no longer `paused`."""
        self._go_on.append(go_on)

    def write_line(self, text: str) -> None:
        """Show a line of the launcher, on a separate line even after a worker's unfinished progress bar."""
        start = "" if self.at_line_start else "\n"
        self.write(f"{start}{text}\n".encode(errors="replace"))

    def close(self) -> None:
        """Close, after giving a blocked console a moment to take the rest."""
        limit_s = CLOSE_LIMIT_S if self._give_back is None else FILE_CLOSE_LIMIT_S
        until_s = time.monotonic() + limit_s
        while self._fd is not None and self._waiting and time.monotonic() < until_s:
            descriptors.ready(self._fd, select.POLLOUT, until_s - time.monotonic())
            self._flush()
        self._release()

    def _open(self, fd: int) -> None:
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            return  # Closed by the parent process: nothing is shown.
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
            if not descriptors.ready(fd, select.POLLOUT, 0):
                raise BlockingIOError
            data = data[:CAREFUL_BYTES]
        elif self._whole and len(data) > select.PIPE_BUF:
            data = data[: bytes(data[: select.PIPE_BUF]).rfind(b"\n") + 1 or len(data)]
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
                self._moved = True
                if not self._waiting and self._left_out:
                    self._waiting += self._notice(STALLED % self._left_out)
                    self._left_out = 0
        except BlockingIOError:
            self._watch(fd)
        except OSError as error:
            if error.errno in FULL:  # There may be room again.
                self._left_out += len(self._waiting)
                self._waiting.clear()
                return
            if self._give_back is not None:
                self._write_directly(self._give_back)
                return
            self._release()  # The reader or the terminal is gone: the job continues, the logs have everything.
        else:
            self._unwatch()

    def _write_directly(self, give_back: Callable[[], None]) -> None:
        """Write to the file itself from now on: a disk that may stall is better than no console."""
        waiting = bytes(self._waiting)
        self._release()
        give_back()
        self._give_back = None
        self._open(self._given)
        text = "the process that writes this file was killed; a part of it may be only in the logs"
        self._waiting += self._notice(text) + waiting
        self._flush()

    def _watch(self, fd: int) -> None:
        if self._watched is not None or self._plain:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # No loop yet: the next write or `close` tries again.
        loop.add_writer(fd, self._flush)
        self._watched = loop
        if self._give_back is not None:
            self._check_progress()

    def _unwatch(self) -> None:
        if self._watched is not None and self._fd is not None and not self._watched.is_closed():
            self._watched.remove_writer(self._fd)
        self._watched = None
        self._still = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._resume()

    def _check_progress(self) -> None:
        """Check whether the process has read since the last check; if not, do not wait for it until it has read all."""
        assert self._watched is not None
        self._moved, self._still = False, self._patience is not None and not self._moved
        self._patience = None if self._still else self._watched.call_later(FILE_STILL_S, self._check_progress)
        if self._still:
            self._resume()

    def _resume(self) -> None:
        going_on, self._go_on = self._go_on, []
        for go_on in going_on:
            go_on()

    def _release(self) -> None:
        self._unwatch()
        self._waiting.clear()
        if self._socket is not None:
            self._socket.close()
        elif self._fd is not None:
            descriptors.close(self._fd)  # No process is left that could report an error of the disk.
        self._fd = self._socket = None


def notice_line(lines: JsonFormatter | None) -> Callable[[str], bytes]:
    """Return the function that turns a message of the launcher into a line between the output of others."""
    if lines is not None:
        return lambda text: lines.agent_line(datetime.now(UTC), text, Severity.WARNING)
    return lambda text: f"\n[elastic-launch] {text}\n".encode()
