"""The newest bytes of one start of a worker, in memory: a report shows the end of a log without reading a disk."""

from __future__ import annotations

from collections import deque
from typing import Final

from launcher.text.sanitize import OutputTail

KEPT_BYTES: Final = 1 << 18
"""Of a start; what is older is in its log."""
PIECE_BYTES: Final = 1 << 14
"""Short pieces are joined up to this length."""


class TailBuffer:
    """Keeps the newest `KEPT_BYTES`, and little more."""

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
