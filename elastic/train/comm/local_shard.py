"""The part of a tensor on this rank: the shard of a DTensor, or the whole of any other tensor."""

from __future__ import annotations

from typing import Any

import torch

from elastic.train.comm.tensor_boxes import Box
from elastic.train.statedict.sharded import is_dtensor


class LocalShards:
    """Finds the parts, and caches the boxes of the shards of a mesh, which every commit needs."""

    def __init__(self) -> None:
        self._boxes: dict[Any, Box] = {}

    def local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Box | None]:
        """Return the memory of this rank's part, and its box in the whole tensor; None for the whole tensor.

        Call it under `torch.no_grad()`, where `to_local` of a DTensor returns the shard itself. Raises `TypeError` for
        a DTensor with partial sums.
        """
        if not is_dtensor(tensor):
            return tensor.detach(), None
        shard: Any = tensor
        place = (id(shard.device_mesh), shard.placements, shard.shape)
        box = self._boxes.get(place)
        if box is None:
            if any(placement.is_partial() for placement in shard.placements):
                raise TypeError("a State cannot contain a DTensor with partial sums; redistribute it first")
            (chunk,) = shard.__create_chunk_list__()
            box = self._boxes[place] = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        return shard.to_local(), box
