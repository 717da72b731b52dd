"""Carries the agent's console output from a pipe into the console's file, in the process that writes the logs.

The disk of such a file may stall for longer than the lease TTL. While the disk makes progress nothing is lost: writers
wait when more than `FLOW_BYTES` are in transit, as for any slow disk. When it has done nothing for `STILL_S`, writers
stop waiting: `KEEP_BYTES` are kept for it, further output is dropped, and a line in the file says how much. The same is
done with output that a full disk refuses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from launcher.logs.console import STALLED, notice_line
from launcher.logs.writer_protocol import FLOW_BYTES, KEEP_BYTES, STILL_S

READ_BYTES: Final = 1 << 18
WRITE_BYTES: Final = 1 << 17
"""Bytes per write: each write shows that a slow disk makes progress."""


class PipeToFile:
    """Copies one pipe into one file."""

    def __init__(
        self,
        pipe: int,
        file: int,
        moved: Callable[[int], None] = lambda count: None,
        notice: Callable[[str], bytes] = notice_line(None),  # noqa: B008  # It is a function.
    ) -> None:
        """`moved` receives the count of finished bytes, in a separate thread; `notice` makes the launcher's lines."""
        self._notice = notice
        self._pipe = pipe
        self._file = file
        self._moved = moved
        self._changed = threading.Condition()
        self._waiting = bytearray()
        self._on_its_way = 0
        self._left_out = 0
        self._moved_s = 0.0
        self._ended = False
        self._refused = 0

    def run(self) -> None:
        """Copy until no process has the pipe open for writing and the file has everything that was kept."""
        writing = threading.Thread(target=self._write)
        writing.start()
        while data := os.read(self._pipe, READ_BYTES):
            self._keep(data)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        writing.join()

    def _keep(self, data: bytes) -> None:
        """Queue bytes for writing; waits while the disk makes progress and has enough to do."""
        with self._changed:
            while self._on_its_way > FLOW_BYTES and (left_s := self._moved_s + STILL_S - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if self._left_out or self._on_its_way + len(data) > KEEP_BYTES:
                self._left_out += len(data)
                return
            if not self._on_its_way:
                self._moved_s = time.monotonic()
            self._add(data)

    def _add(self, data: bytes) -> None:
        self._waiting += data
        self._on_its_way += len(data)
        self._changed.notify_all()

    def _write(self) -> None:
        """Write the queue, until the end."""
        while taken := self._take():
            rest = memoryview(taken)
            while rest:
                piece, rest = rest[:WRITE_BYTES], rest[WRITE_BYTES:]
                self._put(piece)
                self._done(len(piece))
        if self._refused:
            self._taken(self._left_out_line(self._refused))

    def _take(self) -> bytearray:
        """Return everything in the queue; nothing at the end."""
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            taken, self._waiting = self._waiting, bytearray()
            return taken

    def _done(self, count: int) -> None:
        with self._changed:
            self._on_its_way -= count
            self._moved_s = time.monotonic()
            if self._left_out:  # It was dropped after everything in the queue.
                self._add(self._left_out_line(self._left_out))
                self._left_out = 0
            self._changed.notify_all()
        self._moved(count)

    def _put(self, piece: memoryview) -> None:
        """Write a piece. Bytes that the disk refuses are counted, and reported in their place once it works again."""
        if self._refused:
            line = self._left_out_line(self._refused)
            if self._taken(line) == len(line):
                self._refused = 0
        if self._refused:
            self._refused += len(piece)
        else:
            self._refused = len(piece) - self._taken(piece)

    def _left_out_line(self, count: int) -> bytes:
        return self._notice(STALLED % count)

    def _taken(self, data: bytes | memoryview) -> int:
        """Return how many of these bytes the disk takes."""
        done = 0
        with suppress(OSError):
            while done < len(data):
                done += os.write(self._file, data[done:])
        return done
