"""Equal lines of several workers become one line with all their ranks (pure).

    [10.0.0.5-2ad16v] ranks 0-7: NCCL version 2.27.3

A line waits up to a window for other workers to say the same. What one worker says keeps its order, and nothing is
left out: each line of each worker is in exactly one line that is shown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Generic, TypeVar

WINDOW_S: Final = 0.3
"""So long a line waits for others to say it, too. Nobody minds such a delay, and ranks of one node are rarely wider
apart where they say the same."""
WAITING_BYTES_MAX: Final = 1 << 20
"""More than that waits for nobody."""
WAITING_LINES_MAX: Final = 10_000

Who = TypeVar("Who", bound=Hashable)
NUMBER: Final = attrgetter("number")


@dataclass(slots=True)
class MergedLine(Generic[Who]):
    """A line, and all who said it; its number, and since when it waits to be shown."""

    number: int
    text: bytes
    at: float
    who: set[Who]


class LineDeduplicator(Generic[Who]):
    """Lines of workers in, lines to be shown out. Seconds are those of any monotonic clock."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """Nobody is there yet."""
        self._window_s = window_s
        self._there: dict[Who, int] = {}
        """Who speaks here, with the number of the last line of theirs that waits; -1: none does."""
        self._waiting: deque[MergedLine[Who]] = deque()
        self._open: dict[bytes, deque[MergedLine[Who]]] = {}
        self._bytes = 0
        self._number = 0

    def join(self, who: Who) -> None:
        """Somebody speaks from now on: a line is complete when all have said it."""
        self._there.setdefault(who, -1)

    def leave(self, who: Who) -> list[MergedLine[Who]]:
        """Somebody says nothing more. What is shown now: nobody waits for them, and after the last one for nobody."""
        self._there.pop(who, None)
        return self.due() if self._there else self.flush()

    def add_lines(self, who: Who, texts: Iterable[bytes], now: float) -> list[MergedLine[Who]]:
        """Somebody says further lines; what is shown now."""
        self.join(who)
        for text in texts:
            line = self._joined(who, text) or self._begun(who, text, now)
            self._there[who] = line.number
        return self.due(now)

    @property
    def due_at(self) -> float | None:
        """When `due` has something to show; None while nothing waits."""
        return self._waiting[0].at + self._window_s if self._waiting else None

    def flush(self) -> list[MergedLine[Who]]:
        """Everything that waits."""
        return [self._first() for _ in range(len(self._waiting))]

    def _joined(self, who: Who, text: bytes) -> MergedLine[Who] | None:
        """The first equal line that waits behind all that this one has said, if there is one."""
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
        """What is shown now: lines that have waited for long enough, that all have said, or that are too many."""
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
        """Take the first line that waits."""
        line = self._waiting.popleft()
        same = self._open[line.text]
        same.popleft()  # Equal lines wait in one order.
        if not same:
            del self._open[line.text]
        self._bytes -= len(line.text)
        return line
