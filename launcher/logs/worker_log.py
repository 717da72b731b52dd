"""One start of one worker as the agent sees its log: written by another process, its end known here."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

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
"""Of a start; what is older is in its log."""
PIECE_BYTES: Final = 1 << 14
"""Short pieces are joined up to this length."""
_numbers: Final = count(1)
"""Of all starts: a sink never sees one twice."""


class TailBuffer:
    """Keeps the newest `KEPT_BYTES` of a start, and little more: a report shows the end of a log without a disk."""

    def __init__(self) -> None:
        """Nothing has been said yet."""
        self._pieces: deque[bytes | bytearray] = deque()
        self._kept = 0
        self.bytes_written = 0
        """Bytes in all."""

    def add(self, data: bytes) -> None:
        """Further bytes."""
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
        """A line of ours, on a line of its own."""
        whole = not self._pieces or self._pieces[-1].endswith(b"\n")
        self.add(b"%s%s\n" % (b"" if whole else b"\n", text))

    def ending(self) -> OutputTail:
        """The newest bytes."""
        data = b"".join(self._pieces)[-KEPT_BYTES:]
        return OutputTail(data, self.bytes_written > len(data))


class WorkerStartLog:
    """Nothing here waits for a disk. What finds no room on its way is counted, and the log says how much it is."""

    def __init__(self, sink: LogSink, path: Path, header: str, bound: LogLimits = UNBOUND) -> None:
        """Have the log opened and the header written. `bound` is that of all its files."""
        self.sink = sink
        """While that is `paused` the worker says more than the disk takes."""
        self._of = path.name
        self._number = next(_numbers)
        self._recent = TailBuffer()
        self.ending_at_mark: OutputTail | None = None
        """Its end as it was when `set_mark` was called, None if it never was."""
        self._missing = 0
        self.closed = False
        """Whether nothing more comes."""
        self.listeners: list[Callable[[], object]] = []
        """Called when the log has grown or is closed."""
        sink.put(OpenLog(self._number, path_bytes(path), text_bytes(header), bound), self._of)

    @property
    def bytes_written(self) -> int:
        """Bytes that this start has said so far."""
        return self._recent.bytes_written

    @property
    def ending(self) -> OutputTail:
        """The end of what it has said."""
        return self._recent.ending()

    def set_mark(self) -> None:
        """Remember its end as it is now."""
        self.ending_at_mark = self.ending

    def write(self, data: bytes) -> None:
        """Bytes of the worker as they are."""
        self._recent.add(data)
        if self.sink.put(WriteChunk(self._number, data, self._missing), self._of):
            self._missing = 0
        else:
            self._missing += len(data)
        self._notify()

    def line(self, text: str) -> None:
        """A line of ours; it ends an unfinished line of the worker first."""
        data = text_bytes(text)
        self._recent.add_line(data)
        self.sink.put(WriteLine(self._number, data, self._missing), self._of)  # There is always room for it.
        self._missing = 0
        self._notify()

    def close(self) -> None:
        """Nothing more comes."""
        self.closed = True
        try:
            self.sink.put(CloseLog(self._number, self._missing), self._of)
        finally:
            self._notify()

    def _notify(self) -> None:
        for listener in tuple(self.listeners):
            listener()
