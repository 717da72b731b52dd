"""Messages: a typed header and raw tensors, cut into frames. Never pickle.

    message = u32 length of the header | header (msgpack) | padding | tensor | padding | tensor …
    frames  = the message cut into pieces of at most `FRAME_BYTES`; a gRPC message carries one frame

Numbers are little-endian, and every tensor begins at a multiple of 8 bytes behind the header. The header names the
dtype and shape of each tensor, so the length of a message is known, and checked, before its tensors are read. A frame
stays below gRPC's own limit of 4 MB, so that no limit of gRPC has to be raised. Memory grows only with the bytes that
have arrived, whatever a header announces.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import torch

from elastic._decode import UNREADABLE
from elastic.errors import MessageError

FRAME_BYTES = 2 * 1024 * 1024
HEADER_BYTES_MAX = 8 * 1024 * 1024
"""The header of a model with 50,000 pieces is about half of this."""
BODY_BYTES_MAX = 32 * 1024**3
"""The tensors of one message: what one server holds of a model, at most."""
DIMENSIONS_MAX = 16

DTYPES: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_LENGTH = struct.Struct("<I")
_ALIGNED = 8

if sys.byteorder != "little":  # Tensors are sent as they are in memory.
    raise ImportError("elastic.train.ps runs on little-endian machines only")

Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
DtypeName = Annotated[str, msgspec.Meta(pattern=rf"^({'|'.join(DTYPES)})\Z")]


class TensorShape(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor of a message."""

    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    sizes: Annotated[tuple[Size, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorShape:
        """Describe a tensor. Raises `MessageError` for an unsupported dtype."""
        if tensor.dtype not in NAMES:
            raise MessageError(f"cannot send tensors of {tensor.dtype}; supported are {', '.join(DTYPES)}")
        return cls(NAMES[tensor.dtype], tuple(tensor.shape))

    @property
    def numbers(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def length(self) -> int:
        """The size in bytes. Raises `MessageError` for an unsupported dtype, or an empty tensor of excessive shape."""
        if self.dtype not in DTYPES:  # Not a `DtypeName`: a pattern costs a third of the time to read a large message.
            raise MessageError(f"there is no dtype {self.dtype!r}")
        if self.numbers == 0 and math.prod(filter(None, self.sizes)) > BODY_BYTES_MAX:
            raise MessageError(f"no tensor is as wide as {self.sizes}")
        return self.numbers * DTYPES[self.dtype].itemsize


class MessageHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The header before the tensors of every message. `shapes` is set when the message is sent."""

    shapes: tuple[TensorShape, ...] = ()


H = TypeVar("H", bound=MessageHeader)


def frames(header: MessageHeader, tensors: Sequence[torch.Tensor] = ()) -> Iterator[bytes]:
    """Split a message into frames. Do not change the tensors until all frames are taken."""
    # Contiguous tensors in CPU memory are not copied.
    flat = [tensor.detach().to("cpu").contiguous() for tensor in tensors]
    head = msgspec.msgpack.encode(msgspec.structs.replace(header, shapes=tuple(map(TensorShape.of, flat))))
    if len(head) > HEADER_BYTES_MAX:
        raise MessageError(f"a header of {len(head)} bytes is longer than {HEADER_BYTES_MAX}")
    pending = bytearray(_LENGTH.pack(len(head)) + head)
    for part in _parts(flat, len(pending)):
        at = 0
        while at < len(part):
            took = min(len(part) - at, FRAME_BYTES - len(pending))
            pending += part[at : at + took]
            at += took
            if len(pending) == FRAME_BYTES:
                yield bytes(pending)
                pending.clear()
    while pending:  # A long header may be longer than one frame.
        yield bytes(pending[:FRAME_BYTES])
        del pending[:FRAME_BYTES]


def _parts(tensors: Sequence[torch.Tensor], at: int) -> Iterator[memoryview]:
    """Return the bytes of the tensors as they are in memory, each after its padding."""
    for tensor in tensors:
        padding = -at % _ALIGNED
        yield memoryview(bytes(padding))
        length = tensor.numel() * tensor.itemsize
        if length:
            yield memoryview((ctypes.c_char * length).from_address(tensor.data_ptr())).cast("B")
        at += padding + length


class MessageAssembly(Generic[H]):
    """Assembles a message frame by frame. Raises `MessageError` as soon as a frame is invalid."""

    def __init__(
        self, kind: type[H], body_max: int = BODY_BYTES_MAX, check: Callable[[H], object] | None = None
    ) -> None:
        """Expect a message with a header of this kind and at most `body_max` bytes of tensors.

        `check` may refuse the header before the tensors are read.
        """
        self.header: H | None = None
        self._kind = kind
        self._body_max = body_max
        self._check = check
        self._data = bytearray()
        self._length = 0
        self._starts: list[int] = []

    def feed(self, frame: bytes) -> None:
        """Take the next frame."""
        if not frame:
            raise MessageError("an empty frame")
        self._data += frame
        if self.header is None:
            self._read_header()
        if self.header is not None and len(self._data) > self._length:
            raise MessageError(f"{len(self._data) - self._length} bytes more than the header announces")

    def message(self) -> tuple[H, tuple[torch.Tensor, ...]]:
        """Return the complete message. Only its tensors share its memory."""
        if self.header is None or len(self._data) < self._length:
            raise MessageError("the message ended before it was complete")
        return self.header, tuple(
            torch.frombuffer(self._data, dtype=DTYPES[shape.dtype], count=shape.numbers, offset=start).view(shape.sizes)
            if shape.numbers
            else torch.empty(shape.sizes, dtype=DTYPES[shape.dtype])
            for shape, start in zip(self.header.shapes, self._starts, strict=True)
        )

    def _read_header(self) -> None:
        if len(self._data) < _LENGTH.size:
            return
        (length,) = _LENGTH.unpack_from(self._data)
        if length > HEADER_BYTES_MAX:
            raise MessageError(f"a header of {length} bytes is longer than {HEADER_BYTES_MAX}")
        end = _LENGTH.size + length
        if len(self._data) < end:
            return
        try:
            header = msgspec.msgpack.decode(memoryview(self._data)[_LENGTH.size : end], type=self._kind)
        except UNREADABLE as error:
            raise MessageError(f"the header cannot be read: {error}") from error
        at = end
        for shape in header.shapes:
            at += -at % _ALIGNED
            self._starts.append(at)
            at += shape.length
        if at - end > self._body_max:
            raise MessageError(f"{at - end} bytes of tensors are more than {self._body_max}")
        if self._check is not None:
            self._check(header)
        self._length = at
        self.header = header


def read_single(kind: type[H], frame: Any) -> H:
    """Read a message of one frame, without tensors. `MessageError` for anything else, the end of a stream included."""
    assembly = MessageAssembly(kind, check=refuse_tensors)
    if isinstance(frame, bytes):
        assembly.feed(frame)
    return assembly.message()[0]


def refuse_tensors(header: MessageHeader) -> None:
    """`MessageError` for a message that announces tensors."""
    if header.shapes:
        raise MessageError("such a message has no tensors")


async def receive(
    stream: AsyncIterator[bytes], kind: type[H], check: Callable[[H], object] | None = None
) -> tuple[H, tuple[torch.Tensor, ...]]:
    """Read one message to the end of the stream. `check` may refuse its header before its tensors are read."""
    assembly = MessageAssembly(kind, check=check)
    async for frame in stream:
        assembly.feed(frame)
    return assembly.message()
