"""Small messages between all ranks of a group: bytes, not pickled objects.

The group is one of gloo's, also where training uses NCCL, so that nothing here touches a card. A message travels
together with its size, in one collective; what is longer than `inline_bytes` takes a second one.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.distributed as dist

INLINE_BYTES_MAX: Final = 16 << 10
"""The random states of a rank fit in."""
INLINE_BYTES_MIN: Final = 64
ALL_INLINE_BYTES: Final = 1 << 20
"""What the ranks of a large world together send before they know how much anybody has to say."""
_SIZE_BYTES: Final = 8


def inline_bytes(world: int) -> int:
    """How long a message may be that needs one collective."""
    return max(INLINE_BYTES_MIN, min(INLINE_BYTES_MAX, ALL_INLINE_BYTES // world))


def rank_and_size(group: Any = None) -> tuple[int, int]:
    """The rank of this process in a group, and how many there are; 0 and 1 where there is no process group."""
    return (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)


def gather(data: bytes, group: Any = None) -> list[bytes]:
    """What every rank says, by rank. Every rank of the group calls it; each may say something of another length."""
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
    """What the rank `source` says; the others pass None. Every rank of the group calls it."""
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
    """The size of a message and its beginning."""
    return _padded(len(data).to_bytes(_SIZE_BYTES, "little") + data[:inline], _SIZE_BYTES + inline)


def _padded(data: bytes, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(data.ljust(size, b"\0")), dtype=torch.uint8)


def _all(mine: torch.Tensor, world: int, group: Any) -> list[bytes]:
    """One collective: what all ranks have, each as long as this one's."""
    found = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(found, mine, group=group)
    return [one.numpy().tobytes() for one in found]
