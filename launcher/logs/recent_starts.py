"""The newest starts of each process of a node as their agent remembers them, readable from any position.

Nothing is read from a disk, which may stall: `launcher.logs.worker_log` has the newest 256 kB of each start. Older
output is in the file. A reader holds no bytes, only a position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from launcher.logs.worker_log import WorkerStartLog
from launcher.wire.inspect_messages import PIECE_BYTES

STARTS_KEPT = 2
"""Per process: workers that have just started again have written little, and the end of their last log may matter."""

Stamp = tuple[int, int]
"""A start: its generation, and the revision of the cluster spec that requested it."""


class LogPosition(NamedTuple):
    """Where a reader is: in which start, and after how many of its bytes."""

    stamp: Stamp
    offset: int


@dataclass(frozen=True, slots=True)
class _RememberedStart:
    path: str
    stamp: Stamp
    header: bytes
    log: WorkerStartLog

    @property
    def size(self) -> int:
        return len(self.header) + self.log.bytes_written

    def kept(self) -> tuple[bytes, int]:
        """Return what is remembered of it, and how many bytes are missing between the header and that."""
        ending = self.log.ending
        missing = self.log.bytes_written - len(ending.data)
        return (self.header + ending.data if not missing else ending.data), missing

    def first_newer(self, data: bytes, since_s: float | None) -> int:
        """Where in the remembered bytes the first line begins that was written within `since_s`; None is any time."""
        if since_s is None:
            return 0
        older = self.log.bytes_older_than(since_s)
        if older is None:
            return len(data)
        at = len(self.header) + older - (self.size - len(data)) if older else 0
        return data.rfind(b"\n", 0, at) + 1 if at > 0 else 0


class RecentStarts:
    """The starts of one node, by the name of the log's file."""

    def __init__(self) -> None:
        """Start without any."""
        self._starts: dict[str, list[_RememberedStart]] = {}
        self._stamps: deque[Stamp] = deque(maxlen=STARTS_KEPT)
        self.listeners: list[Callable[[str], object]] = []
        """Called with the name of a log that has grown or is closed; with "" when a process starts."""

    def notify(self, name: str = "") -> None:
        """Call the listeners."""
        for listener in tuple(self.listeners):
            listener(name)

    def begin(self, path: str, name: str, stamp: Stamp, header: str, log: WorkerStartLog) -> None:
        """Note a start; its log is at `path`, under `name`. Starts before the previous one are forgotten."""
        if stamp not in self._stamps:
            self._stamps.append(stamp)
            newest = {
                of: [start for start in starts if start.stamp in self._stamps] for of, starts in self._starts.items()
            }
            self._starts = {of: starts for of, starts in newest.items() if starts}
        start = _RememberedStart(path, stamp, f"{header}\n".encode(errors="replace"), log)
        self._starts.setdefault(name, []).append(start)
        log.listeners.append(partial(self.notify, name))
        self.notify()

    def path(self, name: str) -> str:
        """Return the path of the log, "" if there was none."""
        return self._starts[name][-1].path if name in self._starts else ""

    def has(self, name: str, stamp: Stamp) -> bool:
        """Return whether that start is known."""
        return any(start.stamp == stamp for start in self._starts.get(name, ()))

    def over(self, name: str, after: Stamp) -> Stamp | None:
        """Return the newest start after that one if it has ended, None if it runs or there is none."""
        starts = self._starts.get(name)
        if not starts or starts[-1].stamp <= after or not starts[-1].log.closed:
            return None
        return starts[-1].stamp

    def begins(self, name: str, after: Stamp, lines: int, since_s: float | None = None) -> LogPosition | None:
        """Where the last `lines` lines of the starts after that one begin; None if there is no such start.

        With `since_s` lines that were written longer ago than that are left out.
        """
        starts = [start for start in self._starts.get(name, ()) if start.stamp > after]
        place = None
        for start in reversed(starts):
            data, _ = start.kept()
            offset, lines = _back(data, lines)
            offset = max(offset, start.first_newer(data, since_s))
            place = LogPosition(start.stamp, start.size - len(data) + offset if offset else 0)
            if offset or not lines:
                break
        return place

    def piece(self, name: str, place: LogPosition) -> tuple[bytes, int, LogPosition]:
        """Return the next bytes from a position, how many are missing before them, and their end; b"" at the end."""
        for start in self._starts.get(name, ()):
            if start.stamp < place.stamp:
                continue
            offset = place.offset if start.stamp == place.stamp else 0
            if offset < start.size:
                data, missing = start.kept()
                begins = start.size - len(data)
                lost = max(begins - max(offset, len(start.header)), 0) if missing else 0
                if offset < len(start.header):
                    piece, lost, behind = start.header[offset:], 0, len(start.header)
                else:
                    at = max(offset, begins)
                    piece = data[at - begins : at - begins + PIECE_BYTES]
                    behind = at + len(piece)
                return piece, lost, LogPosition(start.stamp, behind)
            place = LogPosition(start.stamp, offset)
        return b"", 0, place


def _back(data: bytes, lines: int) -> tuple[int, int]:
    """Return where the last `lines` lines of some bytes begin, and how many more lines there is room for."""
    at = len(data)
    if lines and at and not data.endswith(b"\n"):
        at, lines = data.rfind(b"\n") + 1, lines - 1
    while at and lines:
        at, lines = data.rfind(b"\n", 0, at - 1) + 1, lines - 1
    return at, lines
