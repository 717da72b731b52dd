"""Broadcasts trees from the ranks that have them to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from elastic.train.comm import byte_collectives
from elastic.train.comm.redistribute import TensorPiece, exchange
from elastic.train.statedict import tree


class _PackedTree(msgspec.Struct, frozen=True, array_like=True):
    """A tree without its tensors, and the dtype and shape of each tensor."""

    packed: bytes
    tensors: list[tuple[str, tuple[int, ...]]]


_decoder = msgspec.msgpack.Decoder(_PackedTree)


def broadcast_trees(trees: Mapping[str, Any] | None, holders: Sequence[bool], group: Any) -> dict[str, Any]:
    """Return the same trees on all ranks; a collective.

    `trees` are those of a rank that has them, None on the other ranks. `holders` tells for each rank whether it has
    them, and is the same on all ranks. A rank that has the trees gets its own; the tensors of the others are on the
    CPU.
    """
    source = list(holders).index(True)
    if all(holders):
        assert trees is not None
        return dict(trees)
    own, tensors = None, list[torch.Tensor]()
    if trees is not None:
        packed, tensors = tree.pack(dict(trees))
        kinds = [(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors]
        own = msgspec.msgpack.encode(_PackedTree(packed, kinds))
    is_source = torch.distributed.get_rank(group) == source
    sent = byte_collectives.broadcast(own if is_source else None, source, group)
    if trees is not None:
        exchange(group, {str(at): [TensorPiece.whole(tensor)] for at, tensor in enumerate(tensors)}, {})
        return dict(trees)
    skeleton = _decoder.decode(sent)
    tensors = [torch.empty(shape, dtype=getattr(torch, dtype), device="cpu") for dtype, shape in skeleton.tensors]
    exchange(group, {}, {str(at): TensorPiece.whole(tensor) for at, tensor in enumerate(tensors)})
    given: dict[str, Any] = tree.merge_tensors(tree.unpack(skeleton.packed), tensors)
    return given
