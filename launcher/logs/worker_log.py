"""The agent's view of the log of one start of one worker: another process writes it, the agent keeps its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from launcher.logs.writer_client import LogSink
from launcher.logs.writer_protocol import (
    UNBOUND,
    CloseLog,
    LogLimits,
    OpenLog,
    WriteChunk,
    WriteLine,
    path_bytes,
    text_bytes,
)
from launcher.text.sanitize import OutputTail

KEPT_BYTES: Final = 1 << 18
"""Bytes that are kept of a start; older output is only in its log."""
PIECE_BYTES: Final = 1 << 14
"""Short pieces are joined up to this length."""
SPAN_S: Final = 1.0
"""Output within this time counts as written at one time, so that `--since` needs little memory."""
SPANS_MAX: Final = 1024
"""More spans than this are joined in pairs; times then become coarser, and never too early."""
_numbers: Final = count(1)
"""Unique numbers of starts."""


class _Span(NamedTuple):
    """Bytes from `first_byte` on that were written from `since` to `until`."""

    since: float
    until: float
    first_byte: int


class TailBuffer:
    """Keeps little more than the newest `KEPT_BYTES` of a start: a report shows the end of a log without a disk."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns monotonic seconds: the time of each write."""
        self._clock = clock
        self._began_at = clock()
        self._spans: list[_Span] = []
        self._pieces: deque[bytes | bytearray] = deque()
        self._kept = 0
        self.bytes_written = 0
        """The total number of bytes."""

    def add(self, data: bytes) -> None:
        """Further bytes."""
        self._note_time()
        self.bytes_written += len(data)
        self._kept += len(data)
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(last) + len(data) <= PIECE_BYTES:
            last += data
        else:
            self._pieces.append(data if len(data) > PIECE_BYTES // 2 else bytearray(data))
        while self._kept - len(self._pieces[0]) >= KEPT_BYTES:
            self._kept -= len(self._pieces.popleft())

    def add_line(self, text: bytes) -> None:
        """Add a line of the launcher, on a separate line."""
        whole = not self._pieces or self._pieces[-1].endswith(b"\n")
        self.add(b"%s%s\n" % (b"" if whole else b"\n", text))

    def bytes_older_than(self, age_s: float) -> int | None:
        """The number of bytes that were written longer ago than `age_s`, or a little less; None if all of it was."""
        since = self._clock() - age_s
        newer = next((span.first_byte for span in self._spans if span.until >= since), None)
        return 0 if newer is None and self._began_at >= since else newer

    def _note_time(self) -> None:
        now = self._clock()
        if self._spans and now - self._spans[-1].since < SPAN_S:
            self._spans[-1] = self._spans[-1]._replace(until=now)
            return
        self._spans.append(_Span(now, now, self.bytes_written))
        if len(self._spans) > SPANS_MAX:
            pairs = zip(self._spans[::2], self._spans[1::2], strict=False)
            self._spans = [*(first._replace(until=second.until) for first, second in pairs), self._spans[-1]]

    def ending(self) -> OutputTail:
        """Return the newest bytes."""
        data = b"".join(self._pieces)[-KEPT_BYTES:]
        return OutputTail(data, self.bytes_written > len(data))


class WorkerStartLog:
    """Never waits for a disk.

    Bytes that do not fit into the queue are dropped and counted; the log reports the number.
    """

    def __init__(
        self,
        sink: LogSink,
        path: Path,
        header: str,
        bound: LogLimits = UNBOUND,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Have the log opened and the header written. `bound` is that of all its files."""
        self.sink = sink
        """While it is `paused` the worker writes more than the disk takes."""
        self._of = path.name
        self._number = next(_numbers)
        self._recent = TailBuffer(clock)
        self.ending_at_mark: OutputTail | None = None
        """Its end as it was when `set_mark` was called, None if it never was."""
        self._missing = 0
        self.closed = False
        """Whether the start has ended."""
        self.listeners: list[Callable[[], object]] = []
        """Called when the log has grown or is closed."""
        sink.put(OpenLog(self._number, path_bytes(path), text_bytes(header), bound), self._of)

    @property
    def bytes_written(self) -> int:
        """Bytes that this start has written so far."""
        return self._recent.bytes_written

    def bytes_older_than(self, age_s: float) -> int | None:
        """See `TailBuffer.bytes_older_than`."""
        return self._recent.bytes_older_than(age_s)

    @property
    def ending(self) -> OutputTail:
        """The end of its output."""
        return self._recent.ending()

    def set_mark(self) -> None:
        """Remember the current end of the log."""
        self.ending_at_mark = self.ending

    def write(self, data: bytes) -> None:
        """Append bytes of the worker."""
        self._recent.add(data)
        if self.sink.put(WriteChunk(self._number, data, self._missing), self._of):
            self._missing = 0
        else:
            self._missing += len(data)
        self._notify()

    def line(self, text: str) -> None:
        """Append a line of the launcher; it ends an unfinished line of the worker first."""
        data = text_bytes(text)
        self._recent.add_line(data)
        self.sink.put(WriteLine(self._number, data, self._missing), self._of)  # There is always room for it.
        self._missing = 0
        self._notify()

    def close(self) -> None:
        """Close the log of this start."""
        self.closed = True
        try:
            self.sink.put(CloseLog(self._number, self._missing), self._of)
        finally:
            self._notify()

    def _notify(self) -> None:
        for listener in tuple(self.listeners):
            listener()
