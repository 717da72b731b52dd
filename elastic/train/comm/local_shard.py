"""The part of a tensor that this rank has: of a DTensor its shard, of any other tensor all of it."""

from __future__ import annotations

from typing import Any

import torch

from elastic.train.comm.tensor_boxes import Box
from elastic.train.statedict.sharded import is_dtensor


class LocalShards:
    """Finds the parts, and remembers where the shards of a mesh lie: that is asked for at every commit."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._boxes: dict[Any, Box] = {}

    def local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Box | None]:
        """The memory of this rank's part, and where it lies in the whole; None: it is the whole.

        Call it under `torch.no_grad()`, where a DTensor gives its shard itself. Raises `TypeError` for a DTensor that
        holds partial sums.
        """
        if not is_dtensor(tensor):
            return tensor.detach(), None
        shard: Any = tensor
        place = (id(shard.device_mesh), shard.placements, shard.shape)
        box = self._boxes.get(place)
        if box is None:
            if any(placement.is_partial() for placement in shard.placements):
                raise TypeError("a DTensor that holds partial sums has no place in a state; redistribute it first")
            (chunk,) = shard.__create_chunk_list__()
            box = self._boxes[place] = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        return shard.to_local(), box
