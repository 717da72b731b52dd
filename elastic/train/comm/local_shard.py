"""The part of a tensor that this rank has: of a DTensor its shard, of any other tensor all of it."""

from __future__ import annotations

from typing import Any

import torch

from elastic.train.comm.tensor_boxes import Box


class LocalShards:
    """Finds the parts, and remembers where the shards of a mesh lie: that is asked for at every commit."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._boxes: dict[Any, Box] = {}

    def local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Box | None]:
        """The memory of this rank's part, and where it lies in the whole; None: it is the whole.

        Raises `TypeError` for a DTensor that holds partial sums.
        """
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            return tensor.detach(), None
        from torch.distributed.tensor import DTensor

        if not isinstance(tensor, DTensor):
            return tensor.detach(), None
        place = (id(tensor.device_mesh), tensor.placements, tensor.shape)
        box = self._boxes.get(place)
        if box is None:
            box = self._boxes[place] = _box(tensor)
        part: torch.Tensor = tensor._local_tensor.detach()
        return part, box


def _box(tensor: Any) -> Box:
    from torch.distributed.tensor import _utils

    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError("a DTensor that holds partial sums has no place in a state; redistribute it first")
    sizes, offsets = _utils.compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(tuple(offsets), tuple(sizes))
