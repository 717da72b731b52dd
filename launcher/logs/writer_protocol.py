"""What an agent has written into its log folder: orders to whoever writes (`launcher.logs.writer`), and its answers.

Between the agent and the process that writes they are MessagePack behind their length. Paths and lines are bytes: the
name of a folder need not be text.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec


class LogOrder(msgspec.Struct, frozen=True, array_like=True):
    """One piece of work, done in the order of the orders."""


class LogLimits(msgspec.Struct, frozen=True, array_like=True):
    """What the files of one log may take together, None: without end; so many `older` ones are set aside."""

    bytes_max: int | None = None
    older: int = 1


UNBOUND: Final = LogLimits()


class OpenLog(LogOrder, frozen=True, tag="Begin"):
    """A worker starts: open its log and write the header. `start` is its number in the orders that follow."""

    start: int
    path: bytes
    header: bytes
    bound: LogLimits


class WriteChunk(LogOrder, frozen=True, tag="Wrote"):
    """A worker wrote `size` bytes, which are in the ring `at` this place; `missing` bytes before it were left out."""

    start: int
    size: int
    missing: int = 0
    at: int = 0


class WriteLine(LogOrder, frozen=True, tag="Line"):
    """A line of ours, for the log of a worker; `missing` as in `WriteChunk`."""

    start: int
    text: bytes
    missing: int = 0


class CloseLog(LogOrder, frozen=True, tag="End"):
    """Nothing more comes of this start; `missing` as in `WriteChunk`."""

    start: int
    missing: int = 0


class AppendClosed(LogOrder, frozen=True, tag="Amend"):
    """A line of ours for a log that is closed already."""

    path: bytes
    text: bytes


class AppendShared(LogOrder, frozen=True, tag="Append"):
    """A line, with its end, for a file that agents share (`launcher.logs.shared_file`)."""

    path: bytes
    line: bytes


class WriteEndpoints(LogOrder, frozen=True, tag="Endpoints"):
    """The endpoints of a generation (`launcher.logs.endpoint_list_writer.write_endpoints`)."""

    folder: bytes
    g: int
    endpoints: tuple[str, ...]
    servers: tuple[str, ...]


class WriteEnvironment(LogOrder, frozen=True, tag="Environment"):
    """The environment of a worker, without secrets (`launcher.logs.environment_dump`)."""

    folder: bytes
    name: str
    text: bytes


AnyLogOrder = (
    OpenLog | WriteChunk | WriteLine | CloseLog | AppendClosed | AppendShared | WriteEndpoints | WriteEnvironment
)


class LogFolderReady(msgspec.Struct, frozen=True, array_like=True, tag="Held"):
    """The folder is good, and `path` is where it is. The others are lines for people, "" if all is as asked."""

    path: bytes
    note: bytes
    moved: bytes
    unlocked: bytes
    warning: bytes


class LogFolderRejected(msgspec.Struct, frozen=True, array_like=True, tag="Refused"):
    """The folder cannot be used."""

    why: bytes


class LogAck(msgspec.Struct, frozen=True, array_like=True, tag="Done"):
    """So many orders are done in all."""

    orders: int


class LogNotice(msgspec.Struct, frozen=True, array_like=True, tag="Told"):
    """Something that people should hear; `quietly` for those who ask."""

    text: bytes
    quietly: bool = False


AnyLogAnswer = LogFolderReady | LogFolderRejected | LogAck | LogNotice

LENGTH_BYTES: Final = 4
_encoder: Final = msgspec.msgpack.Encoder()
_order: Final = msgspec.msgpack.Decoder(AnyLogOrder)
_answer: Final = msgspec.msgpack.Decoder(AnyLogAnswer)


def packed(message: AnyLogOrder | AnyLogAnswer) -> bytearray:
    """A message behind its length."""
    frame = bytearray(LENGTH_BYTES)
    _encoder.encode_into(message, frame, LENGTH_BYTES)
    frame[:LENGTH_BYTES] = (len(frame) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return frame


class LogFrameReader:
    """Cuts what comes into messages."""

    def __init__(self) -> None:
        """Nothing has come yet."""
        self._rest = bytearray()

    def orders(self, data: bytes) -> list[AnyLogOrder]:
        """The orders that `data` completes."""
        return [_order.decode(frame) for frame in self._cut(data)]

    def answers(self, data: bytes) -> list[AnyLogAnswer]:
        """The answers that `data` completes."""
        return [_answer.decode(frame) for frame in self._cut(data)]

    def _cut(self, data: bytes) -> Iterator[bytearray]:
        rest, at = self._rest, 0
        rest += data
        while len(rest) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(rest[at : at + LENGTH_BYTES], "big")
            if len(rest) < end:
                break
            yield rest[at + LENGTH_BYTES : end]
            at = end
        del rest[:at]


def text_bytes(text: str) -> bytes:
    """A line as bytes; the name of a folder in it that is no text stays as it is."""
    return text.encode(errors="surrogateescape")


def bytes_text(data: bytes) -> str:
    """The line again."""
    return data.decode(errors="surrogateescape")


def path_bytes(path: Path) -> bytes:
    """A path as bytes."""
    return os.fsencode(path)


def bytes_path(data: bytes) -> Path:
    """The path again."""
    return Path(os.fsdecode(data))


class RingBuffer:
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
