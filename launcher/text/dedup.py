"""Merges equal lines of several workers into one line with all their ranks (pure).

    [10.0.0.5-2ad16v] ranks 0-7: NCCL version 2.27.3

A line waits up to a window for other workers to write the same. The lines of each worker keep their order, and none is
dropped: each line of each worker is in exactly one output line.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Generic, TypeVar

WINDOW_S: Final = 0.3
"""Time that a line waits for equal lines of other workers. Users hardly notice this delay, and equal lines of the ranks
of a node are rarely further apart."""
WAITING_BYTES_MAX: Final = 1 << 20
"""Lines beyond this size do not wait."""
WAITING_LINES_MAX: Final = 10_000

Who = TypeVar("Who", bound=Hashable)
NUMBER: Final = attrgetter("number")


@dataclass(slots=True)
class MergedLine(Generic[Who]):
    """A line, the workers that wrote it, its number, and since when it waits for output."""

    number: int
    text: bytes
    at: float
    who: set[Who]


class LineDeduplicator(Generic[Who]):
    """Takes lines of workers and returns merged lines. Seconds are those of any monotonic clock."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """`window_s` is the time in seconds that a line waits for equal lines of other workers."""
        self._window_s = window_s
        self._there: dict[Who, int] = {}
        """The workers, each with the number of its last waiting line; -1: none waits."""
        self._waiting: deque[MergedLine[Who]] = deque()
        self._open: dict[bytes, deque[MergedLine[Who]]] = {}
        self._bytes = 0
        self._number = 0

    def join(self, who: Who) -> None:
        """Add a worker. A merged line is complete when all workers have written it."""
        self._there.setdefault(who, -1)

    def leave(self, who: Who) -> list[MergedLine[Who]]:
        """Remove a worker, for which no line waits any more; return the lines that are complete now."""
        self._there.pop(who, None)
        return self.due() if self._there else self.flush()

    def add_lines(self, who: Who, texts: Iterable[bytes], now: float) -> list[MergedLine[Who]]:
        """Add lines of a worker; return the lines that are complete now."""
        self.join(who)
        for text in texts:
            line = self._joined(who, text) or self._begun(who, text, now)
            self._there[who] = line.number
        return self.due(now)

    @property
    def due_at(self) -> float | None:
        """When `due` will return a line; None while no line waits."""
        return self._waiting[0].at + self._window_s if self._waiting else None

    def flush(self) -> list[MergedLine[Who]]:
        """Return all waiting lines."""
        return [self._first() for _ in range(len(self._waiting))]

    def _joined(self, who: Who, text: bytes) -> MergedLine[Who] | None:
        """Return the first equal waiting line after all lines of this worker, if there is one."""
        same = self._open.get(text)
        if same is None or same[-1].number <= (last := self._there[who]):
            return None
        line = same[bisect_right(same, last, key=NUMBER)]
        line.who.add(who)
        return line

    def _begun(self, who: Who, text: bytes, now: float) -> MergedLine[Who]:
        line = MergedLine(self._number, text, now, {who})
        self._number += 1
        self._waiting.append(line)
        self._open.setdefault(text, deque()).append(line)
        self._bytes += len(text)
        return line

    def due(self, now: float = float("-inf")) -> list[MergedLine[Who]]:
        """Return the lines that have waited long enough, that all workers have written, or that exceed the limit."""
        out = []
        while self._waiting and (
            now >= self._waiting[0].at + self._window_s
            or self._waiting[0].who >= self._there.keys()
            or self._bytes > WAITING_BYTES_MAX
            or len(self._waiting) > WAITING_LINES_MAX
        ):
            out.append(self._first())
        return out

    def _first(self) -> MergedLine[Who]:
        """Remove and return the first waiting line."""
        line = self._waiting.popleft()
        same = self._open[line.text]
        same.popleft()  # Equal lines wait in one order.
        if not same:
            del self._open[line.text]
        self._bytes -= len(line.text)
        return line
