"""Memory that an agent shares with the process that writes its logs: bytes on their way are copied once."""

from __future__ import annotations

import mmap
from collections import deque


class Ring:
    """Pieces are put in one after the other, and freed in the same order. Made before the fork that shares it."""

    def __init__(self, size: int) -> None:
        """Room for `size` bytes; pages that were never used cost nothing."""
        self._size = size
        self._memory = mmap.mmap(-1, size)
        self._view = memoryview(self._memory)
        self._taken: deque[tuple[int, int]] = deque()
        self._at = 0
        self.used = 0
        """Bytes that are not free, with what is left unused at the end because a piece found no room there."""

    def put(self, data: bytes, number: int) -> int | None:
        """Put in a piece that is freed by `free(number)`; where it is, None if there is no room now."""
        unused = 0 if self._at + len(data) <= self._size else self._size - self._at
        taken = unused + len(data)
        if self.used + taken > self._size:
            return None
        at = (self._at + unused) % self._size
        self._view[at : at + len(data)] = data
        self._at = at + len(data)
        self._taken.append((number, taken))
        self.used += taken
        return at

    def free(self, number: int) -> None:
        """Free every piece up to this number."""
        while self._taken and self._taken[0][0] <= number:
            self.used -= self._taken.popleft()[1]

    def piece(self, at: int, size: int) -> memoryview:
        """A piece that was put in."""
        return self._view[at : at + size]
