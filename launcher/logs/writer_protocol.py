"""The orders of an agent to the writer of its log directory (`launcher.logs.writer`), and the answers.

Between the agent and the process that writes they are MessagePack after their length. Paths and lines are bytes: the
name of a directory need not be text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

FLOW_BYTES: Final = 3 << 19
"""The largest number of bytes in transit to a disk that makes progress."""
KEEP_BYTES: Final = 16_000_000
"""Bytes that are kept for a stalled disk."""
STILL_S: Final = 1.0
"""A disk that has done nothing for this time is stalled."""


class LogOrder(msgspec.Struct, frozen=True, array_like=True):
    """One piece of work, done in the order of the orders."""


class LogLimits(msgspec.Struct, frozen=True, array_like=True):
    """What the files of one log may take together, None: no limit; `older` rotated ones are kept."""

    bytes_max: int | None = None
    older: int = 1


UNBOUND: Final = LogLimits()


class OpenLog(LogOrder, frozen=True, tag="Begin"):
    """Open the log of a worker that starts, and write the header. `start` is its number in the orders that follow."""

    start: int
    path: bytes
    header: bytes
    bound: LogLimits


class WriteChunk(LogOrder, frozen=True, tag="Wrote"):
    """A worker wrote `data`; `missing` bytes before it were dropped."""

    start: int
    data: bytes
    missing: int = 0


class WriteLine(LogOrder, frozen=True, tag="Line"):
    """A line of the launcher, for the log of a worker; `missing` as in `WriteChunk`."""

    start: int
    text: bytes
    missing: int = 0


class CloseLog(LogOrder, frozen=True, tag="End"):
    """The end of this start; `missing` as in `WriteChunk`."""

    start: int
    missing: int = 0


class AppendClosed(LogOrder, frozen=True, tag="Amend"):
    """A line of the launcher for a log that is closed already."""

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
    """The directory is writable, and `path` is its place. `notes` and `warning` are messages for users."""

    path: bytes
    notes: tuple[bytes, ...]
    warning: bytes


class LogFolderRejected(msgspec.Struct, frozen=True, array_like=True, tag="Refused"):
    """The directory cannot be used."""

    why: bytes


class LogAck(msgspec.Struct, frozen=True, array_like=True, tag="Done"):
    """The total number of orders that are done."""

    orders: int


class LogNotice(msgspec.Struct, frozen=True, array_like=True, tag="Told"):
    """A message for users; if `quietly`, only `--verbose` shows it."""

    text: bytes
    quietly: bool = False


AnyLogAnswer = LogFolderReady | LogFolderRejected | LogAck | LogNotice

LENGTH_BYTES: Final = 4
_encoder: Final = msgspec.msgpack.Encoder()
_order: Final = msgspec.msgpack.Decoder(AnyLogOrder)
_answer: Final = msgspec.msgpack.Decoder(AnyLogAnswer)


def packed(message: AnyLogOrder | AnyLogAnswer) -> bytearray:
    """Return a message after its length."""
    frame = bytearray(LENGTH_BYTES)
    _encoder.encode_into(message, frame, LENGTH_BYTES)
    frame[:LENGTH_BYTES] = (len(frame) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return frame


class LogFrameReader:
    """Cuts received bytes into messages."""

    def __init__(self) -> None:
        """Start empty."""
        self._rest = b""

    def orders(self, data: bytes) -> list[AnyLogOrder]:
        """Return the orders that `data` completes."""
        return [_order.decode(frame) for frame in self._cut(data)]

    def answers(self, data: bytes) -> list[AnyLogAnswer]:
        """Return the answers that `data` completes."""
        return [_answer.decode(frame) for frame in self._cut(data)]

    def _cut(self, data: bytes) -> Iterator[memoryview]:
        whole, at = memoryview(self._rest + data), 0
        while len(whole) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(whole[at : at + LENGTH_BYTES], "big")
            if len(whole) < end:
                break
            yield whole[at + LENGTH_BYTES : end]
            at = end
        self._rest = bytes(whole[at:])


def text_bytes(text: str) -> bytes:
    """Return a line as bytes; the name of a directory in it that is no text stays unchanged."""
    return text.encode(errors="surrogateescape")


def bytes_text(data: bytes) -> str:
    """Return the line again."""
    return data.decode(errors="surrogateescape")


def path_bytes(path: Path) -> bytes:
    """Return a path as bytes."""
    return os.fsencode(path)


def bytes_path(data: bytes) -> Path:
    """Return the path again."""
    return Path(os.fsdecode(data))
