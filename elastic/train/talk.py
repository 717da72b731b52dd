"""Small messages between all ranks of a group: bytes, not pickled objects.

The group is one of gloo's, also where training uses NCCL, so that nothing here touches a card.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def gather(data: bytes, group: Any = None) -> list[bytes]:
    """What every rank says, by rank. Every rank of the group calls it; each may say something of another length."""
    world = dist.get_world_size(group) if dist.is_initialized() else 1
    if world == 1:
        return [data]
    sizes = [torch.zeros(1, dtype=torch.int64, device="cpu") for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(data)], dtype=torch.int64, device="cpu"), group=group)
    longest = max(int(size) for size in sizes)
    if not longest:
        return [b""] * world
    mine = torch.zeros(longest, dtype=torch.uint8, device="cpu")
    if data:
        mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    all_of_them = [torch.empty(longest, dtype=torch.uint8, device="cpu") for _ in range(world)]
    dist.all_gather(all_of_them, mine, group=group)
    return [one[: int(size)].numpy().tobytes() for one, size in zip(all_of_them, sizes, strict=True)]


def broadcast(data: bytes | None, source: int, group: Any = None) -> bytes:
    """What the rank `source` says; the others pass None. Every rank of the group calls it."""
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        assert data is not None
        return data
    size = torch.tensor([len(data) if data is not None else 0], dtype=torch.int64, device="cpu")
    dist.broadcast(size, source, group=group)
    if data is not None:
        content = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8, device="cpu")
        )
    else:
        content = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    if int(size):
        dist.broadcast(content, source, group=group)
    return content.numpy().tobytes()
