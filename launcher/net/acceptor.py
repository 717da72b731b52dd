"""Takes connections from a listening socket, and pauses while this process has no file descriptor for the next one.

asyncio's own server logs a traceback for each connection that it cannot take then, up to 100 of them in a second.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

OUT_OF: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""What the kernel says when a process, or the machine, has no descriptor or memory for another connection."""


class Acceptor:
    """Hands each connection to `take`, which owns it, until `close`."""

    def __init__(
        self,
        listener: socket.socket,
        take: Callable[[socket.socket], None],
        *,
        room: Callable[[], int],
        pause_s: float,
        spare: Callable[[], bool] = lambda: False,
    ) -> None:
        """`listener` does not block, and is closed with this.

        When a connection waits, `room` says how many may be taken in this round of the loop. When there is no
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
        """Listen no more. May be called again."""
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
                    taken += 1  # This one connection was over before it was taken.
                elif taken:
                    return  # The kernel says so too when no connection waits; the next round knows.
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
