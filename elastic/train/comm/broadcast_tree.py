"""Trees that some ranks have are given to those that have not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch

from elastic.train.comm import byte_collectives
from elastic.train.comm.redistribute import TensorPiece, exchange
from elastic.train.comm.tensor_boxes import Box
from elastic.train.statedict import tree


class _TreeLeaf(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]


_leaves = msgspec.json.Decoder(list[_TreeLeaf])


def broadcast_trees(trees: Mapping[str, Any] | None, holders: Sequence[bool], group: Any) -> dict[str, Any]:
    """Give everybody the same trees. A collective; `holders` is the same everywhere, by rank.

    `trees` are those of a rank that holds them, None elsewhere. Whoever holds them gets its own back; the tensors of
    the others are on the CPU.
    """
    source = list(holders).index(True)
    if all(holders):
        assert trees is not None
        return dict(trees)
    packed, tensors = tree.pack(dict(trees)) if trees is not None else (b"", [])
    leaves = [_TreeLeaf(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors]
    rank = torch.distributed.get_rank(group)
    packed = byte_collectives.broadcast(packed if rank == source else None, source, group)
    table = byte_collectives.broadcast(msgspec.json.encode(leaves) if rank == source else None, source, group)
    offers: dict[str, list[TensorPiece]] = {}
    needs: dict[str, TensorPiece] = {}
    if trees is not None:
        offers = {str(at): [_piece(tensor)] for at, tensor in enumerate(tensors)}
    else:
        leaves = _leaves.decode(table)
        tensors = [torch.empty(leaf.shape, dtype=getattr(torch, leaf.dtype), device="cpu") for leaf in leaves]
        needs = {str(at): _piece(tensor) for at, tensor in enumerate(tensors)}
    exchange(group, offers, needs)
    if trees is not None:
        return dict(trees)
    given: dict[str, Any] = tree.merge_tensors(tree.unpack(packed), tensors)
    return given


def _piece(tensor: torch.Tensor) -> TensorPiece:
    shape = tuple(tensor.shape)
    return TensorPiece(Box((0,) * len(shape), shape), tensor.detach(), shape)
