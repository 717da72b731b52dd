"""Small messages between all ranks of a group: bytes, not pickled objects.

The group is a gloo group, even if training uses NCCL, so that no message uses a GPU. A message and its size travel in
one collective; a message longer than `inline_bytes` needs a second one.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

INLINE_BYTES_MAX: Final = 16 << 10
"""The RNG states of a rank fit."""
INLINE_BYTES_MIN: Final = 64
ALL_INLINE_BYTES: Final = 1 << 20
"""Bytes that all ranks together send before they know the sizes of the messages."""
_SIZE_BYTES: Final = 8


def inline_bytes(world: int) -> int:
    """Return the size of the largest message that needs only one collective, in bytes."""
    return max(INLINE_BYTES_MIN, min(INLINE_BYTES_MAX, ALL_INLINE_BYTES // world))


def rank_and_size(group: Any = None) -> tuple[int, int]:
    """Return the rank of this process in a group, and the size of the group; 0 and 1 without a process group."""
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


def gather(data: bytes, group: Any = None) -> list[bytes]:
    """Gather a message from every rank, by rank; a collective. The messages may differ in length."""
    _, world = rank_and_size(group)
    if world == 1:
        return [data]
    inline = inline_bytes(world)
    begun = _all(_sized(data, inline), world, group)
    sizes = [int.from_bytes(part[:_SIZE_BYTES], "little") for part in begun]
    heads = [part[_SIZE_BYTES : _SIZE_BYTES + size] for part, size in zip(begun, sizes, strict=True)]
    longest = max(sizes) - inline
    if longest <= 0:
        return heads
    ended = _all(_padded(data[inline:], longest), world, group)
    rests = [part[: max(0, size - inline)] for part, size in zip(ended, sizes, strict=True)]
    return [head + rest for head, rest in zip(heads, rests, strict=True)]


def broadcast(data: bytes | None, source: int, group: Any = None) -> bytes:
    """Broadcast the message of the rank `source`; the others pass None. A collective."""
    _, world = rank_and_size(group)
    if world == 1:
        assert data is not None
        return data
    inline = inline_bytes(world)
    content = (
        torch.empty(_SIZE_BYTES + inline, dtype=torch.uint8, device="cpu") if data is None else _sized(data, inline)
    )
    dist.broadcast(content, source, group=group)
    begun = content.numpy().tobytes()
    size = int.from_bytes(begun[:_SIZE_BYTES], "little")
    if size <= inline:
        return begun[_SIZE_BYTES : _SIZE_BYTES + size]
    left = size - inline
    rest = torch.empty(left, dtype=torch.uint8, device="cpu") if data is None else _padded(data[inline:], left)
    dist.broadcast(rest, source, group=group)
    return begun[_SIZE_BYTES:] + rest.numpy().tobytes()


def _sized(data: bytes, inline: int) -> torch.Tensor:
    """Return the size of a message and its first `inline` bytes."""
    return _padded(len(data).to_bytes(_SIZE_BYTES, "little") + data[:inline], _SIZE_BYTES + inline)


def _padded(data: bytes, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)


def _all(own: torch.Tensor, world: int, group: Any) -> list[bytes]:
    """Gather tensors of equal length from all ranks."""
    gathered = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(gathered, own, group=group)
    return [tensor.numpy().tobytes() for tensor in gathered]
