"""One slot: a state in memory that outlives the worker that wrote it.

::

    header    64 bytes: magic, flag, sizes, checksum of the meta
    data      from byte 4096 on: the tensors, each at a multiple of 64 bytes
    meta      after the data, in msgpack: the owner, the table of tensors, the rest of the tree (`tree.pack`)

Each slot is a separate segment (`elastic.channel.shared_memory`), and a state alternates between two slots. So a state
that outgrows its slot gets a larger one while the other slot still has the previous state, and a worker that is killed
during a copy leaves the other slot complete: the flag is cleared before the first byte is written, and set after the
last one. A reader checks everything, and ignores a slot that is invalid in any way.
"""

from __future__ import annotations

import errno
import mmap
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import msgspec
import torch

from elastic._decode import UNREADABLE
from elastic._text import size_text
from elastic.train.comm.tensor_boxes import Box
from elastic.train.torch_internals import copy_all

DATA_AT = 4096
ALIGNED_BYTES = 64
SPARE_BYTES = 64 << 10
"""The reserve of a new slot, so that a growing table does not need a new slot at once."""

_HEADER = struct.Struct("<8s4Q24x")
_FLAG_AT = 8
_MAGIC = b"elastic2"
_WHOLE = 0x656C6F6877
_POPULATE = 23
"""MADV_POPULATE_WRITE (Linux 5.14 and later), which Python 3.11 does not define."""


class SlotMemoryShort(Exception):
    """There is no memory for a slot; the message says why."""


class SlotHead(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a state: the fencing token of its generation, the step, and the rank that wrote it.

    `count` is 1 for the first commit of that rank in that generation; `replicated` and `sharded`: the state of the job
    has such components.
    """

    mark: str
    step: int
    count: int
    rank: int
    world: int
    local_world: int
    replicated: bool
    sharded: bool


class TensorLeaf(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: its dtype, its global shape, the box in this slot, and its offset in the data, in bytes.

    `key` is the name of a tensor of a sharded dict; "" for a tensor of a tree, which is identified by its number.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    box: Box
    at: int


class SlotMeta(msgspec.Struct, frozen=True, array_like=True):
    """The description of the data in a slot."""

    head: SlotHead
    leaves: tuple[TensorLeaf, ...]
    rest: bytes


meta_decoder = msgspec.msgpack.Decoder(SlotMeta)


class LeafSpec(NamedTuple):
    """The specification of a leaf: its key, dtype, and global shape; `box` None is the whole tensor."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    box: Box | None = None


class SlotLayout:
    """The offsets of the tensors of a state, reused as long as the specifications are the same."""

    def __init__(self, specs: Sequence[LeafSpec]) -> None:
        """Assign an offset to each tensor."""
        self.specs = specs
        leaves, at = [], 0
        for spec in specs:
            box = spec.box or Box.whole(spec.shape)
            name = str(spec.dtype).removeprefix("torch.")
            leaves.append(TensorLeaf(spec.key, name, tuple(spec.shape), box, at))
            at = _aligned(at + box.numel * spec.dtype.itemsize)
        self.leaves = tuple(leaves)
        self.data_size = at
        self._encoded = msgspec.Raw(msgspec.msgpack.encode(leaves))

    def meta(self, head: SlotHead, rest: bytes) -> bytes:
        """Encode the `SlotMeta` of a state with these tensors."""
        return msgspec.msgpack.encode((head, self._encoded, rest))


@dataclass(frozen=True)
class SlotSizes:
    """The sizes of data and meta, in bytes, and the checksum of the meta."""

    data: int
    meta: int
    checksum: int


@dataclass(frozen=True)
class SlotContent:
    """The contents of a slot. `tensors` are views of its memory, which the next commit but one overwrites."""

    meta: SlotMeta
    encoded: bytes
    tensors: tuple[torch.Tensor, ...]

    @property
    def head(self) -> SlotHead:
        """The generation, step and rank of the state."""
        return self.meta.head


class Slot:
    """The memory of one slot, mapped into this process until its last view is gone."""

    def __init__(self, fd: int, size: int) -> None:
        """Map a segment; the caller keeps the descriptor. Raises `OSError` or `ValueError`."""
        if size < DATA_AT:
            raise ValueError(f"size is {size}; a slot needs at least {DATA_AT} bytes")
        self.size = size
        self._memory = mmap.mmap(fd, size)
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._populated = False
        self._layout: SlotLayout | None = None
        self._views: tuple[torch.Tensor, ...] = ()

    def fits(self, data_size: int, meta_size: int) -> bool:
        """Return whether a state of this size fits."""
        return DATA_AT + data_size + meta_size <= self.size

    def write(self, layout: SlotLayout, meta: bytes, tensors: Sequence[torch.Tensor]) -> SlotSizes:
        """Copy a state that fits to this slot; it blocks for one copy of the data."""
        self.clear()
        if layout is not self._layout:
            self._layout, self._views = layout, self._tensors(layout.leaves)
        if tensors:
            with torch.no_grad():
                copy_all(self._views, tensors)
        for gpu in {tensor.device for tensor in tensors if tensor.is_cuda}:
            torch.cuda.current_stream(gpu).synchronize()
        start = DATA_AT + layout.data_size
        self._memory[start : start + len(meta)] = meta
        sizes = SlotSizes(layout.data_size, len(meta), zlib.crc32(meta))
        self.finish(sizes)
        return sizes

    def clear(self) -> None:
        """Invalidate the slot, before it is changed."""
        self._memory[_FLAG_AT : _FLAG_AT + 8] = bytes(8)
        if not self._populated:
            self._populate()

    def finish(self, sizes: SlotSizes) -> None:
        """Validate the slot, after all of it is written."""
        self._memory[: _HEADER.size] = _HEADER.pack(_MAGIC, 0, sizes.data, sizes.meta, sizes.checksum)
        self._memory[_FLAG_AT : _FLAG_AT + 8] = _WHOLE.to_bytes(8, "little")

    def stretches(self, sizes: SlotSizes, size_max: int) -> list[torch.Tensor]:
        """Return views of data and meta for a transfer, in pieces of at most `size_max` bytes."""
        end = DATA_AT + sizes.data + sizes.meta
        return [self._bytes[at : min(at + size_max, end)] for at in range(DATA_AT, end, size_max)]

    def read(self) -> SlotContent | None:
        """Read the slot; None if it is not valid."""
        magic, flag, data_size, meta_size, checksum = _HEADER.unpack(self._memory[: _HEADER.size])
        if (magic, flag) != (_MAGIC, _WHOLE) or not self.fits(data_size, meta_size):
            return None
        start = DATA_AT + data_size
        encoded = self._memory[start : start + meta_size]
        if zlib.crc32(encoded) != checksum:
            return None
        try:
            meta = meta_decoder.decode(encoded)
        except UNREADABLE:
            return None
        if not all(_is_sound(leaf, data_size) for leaf in meta.leaves):
            return None
        return SlotContent(meta, encoded, self._tensors(meta.leaves))

    def _tensors(self, leaves: Sequence[TensorLeaf]) -> tuple[torch.Tensor, ...]:
        """Return views of the data, a tensor for each leaf."""
        tensors = []
        for leaf in leaves:
            dtype = getattr(torch, leaf.dtype)
            start = DATA_AT + leaf.at
            view = self._bytes[start : start + leaf.box.numel * dtype.itemsize]
            tensors.append(view.view(dtype).view(leaf.box.sizes))
        return tuple(tensors)

    def _populate(self) -> None:
        """Allocate all pages now, in one call. Raises `SlotMemoryShort` if there are not enough."""
        try:
            self._memory.madvise(_POPULATE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise SlotMemoryShort(f"cannot allocate {size_text(self.size)} of memory ({error.strerror})") from error
        self._populated = True


def _is_sound(leaf: TensorLeaf, data_size: int) -> bool:
    dtype = getattr(torch, leaf.dtype, None)
    return (
        isinstance(dtype, torch.dtype)
        and leaf.box.inside(leaf.shape)
        and leaf.at >= 0
        and leaf.at % ALIGNED_BYTES == 0
        and leaf.at + prod(leaf.box.sizes) * dtype.itemsize <= data_size
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES
