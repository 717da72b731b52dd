"""Accepts connections from a listening socket, and pauses while this process has no file descriptor for the next one.

asyncio's own server logs a traceback for each connection that it cannot accept then, up to 100 per second.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

OUT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The errors if a process, or the host, has no descriptor or memory for another connection."""


class Acceptor:
    """Passes each connection to `take`, which owns it, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], None],
        *,
        room: Callable[[], int],
        pause_s: float,
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take a non-blocking `listener`, which `close` closes.

        When a connection waits, `room` returns how many may be accepted in this iteration of the loop. Without a
        descriptor for it, `spare` may free one and return True. Without room or a descriptor, accepting pauses.
        """
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._take = take
        self._room = room
        self._pause_s = pause_s
        self._spare = spare
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Stop listening. May be called again."""
        if self._listener.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        taken, room = 0, self._room()
        while taken < room:
            try:
                connected, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in OUT_OF:
                    taken += 1  # This connection was closed before it was accepted.
                elif taken:
                    return  # The kernel reports this also if no connection waits.
                elif not self._spare():
                    break
                continue
            connected.setblocking(False)
            self._take(connected)
            taken += 1
        if not taken:
            self._loop.remove_reader(self._listener.fileno())
            self._pause = self._loop.call_later(self._pause_s, self._resume)

    def _resume(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)
