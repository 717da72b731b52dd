"""What an agent has written into its log folder: orders to whoever writes (`launcher.logs.writer`), and its answers.

Between the agent and the process that writes they are MessagePack behind their length. Paths and lines are bytes: the
name of a folder need not be text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

FLOW_BYTES: Final = 3 << 19
"""So much may be on its way to a disk that goes on."""
KEEP_BYTES: Final = 16_000_000
"""So much is kept for a disk that stands still."""
STILL_S: Final = 1.0
"""A disk that has done nothing for so long stands still."""


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
    """A worker wrote `data`; `missing` bytes before it were left out."""

    start: int
    data: bytes
    missing: int = 0


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
    """The folder is good, and `path` is where it is. `notes` and `warning` are lines for people."""

    path: bytes
    notes: tuple[bytes, ...]
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
        self._rest = b""

    def orders(self, data: bytes) -> list[AnyLogOrder]:
        """The orders that `data` completes."""
        return [_order.decode(frame) for frame in self._cut(data)]

    def answers(self, data: bytes) -> list[AnyLogAnswer]:
        """The answers that `data` completes."""
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
