"""Restores a state from the memory of the nodes: every rank of a new generation receives what it needs.

All ranks already know the states of every rank. There are up to three rounds: the trees without their tensors, whether
all can be loaded, and the tensors. A rank reads from its own node without the network, and if every rank has all that
it needs there, only the second round runs. Nothing is read from disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from elastic.errors import CheckpointDamaged, TensorsMissing
from elastic.train.comm import byte_collectives
from elastic.train.comm.local_shard import LocalShards
from elastic.train.comm.redistribute import TensorPiece, exchange
from elastic.train.comm.tensor_boxes import Box
from elastic.train.memory.slot import SlotContent, TensorLeaf, meta_decoder
from elastic.train.memory.step_agreement import RankStates, StoredState
from elastic.train.statedict import tree
from elastic.train.statedict.sharded import SavedTensor, Template

NODE = -1
"""The key of the replicated components, in place of a rank."""


Sources = Mapping[int, SlotContent]
"""The states of one step that this rank can read: the replicated components under `NODE`, others by rank."""


@dataclass(frozen=True)
class TreeSkeleton:
    """A tree without its tensors, and the descriptions of the tensors."""

    leaves: tuple[TensorLeaf, ...]
    rest: Any


@dataclass(frozen=True)
class RankHoldings:
    """The states of one step that a rank can read, by owner, and the owners whose states it needs."""

    held: Mapping[int, StoredState]
    wants: frozenset[int]
    same_world: bool
    """Whether its own state is from the same rank at the same world size."""


def rank_holdings(holdings: Sequence[RankStates], mark: str, step: int) -> list[RankHoldings]:
    """Return what each rank has and needs of a step; the same on every rank."""
    by_rank: list[dict[int, StoredState]] = []
    for holding in holdings:
        by_rank.append({})
        for held in holding.held:
            if (held.head.mark, held.head.step) == (mark, step):
                by_rank[-1].setdefault(NODE if held.kind == "node" else held.head.rank, held)
    heads = {who: held.head for states in reversed(by_rank) for who, held in states.items()}
    old = sorted(who for who in heads if who != NODE)
    result = []
    for rank, (holding, states) in enumerate(zip(holdings, by_rank, strict=True)):
        own = heads.get(rank)
        same = own is not None and (own.world, own.local_world) == (len(holdings), holding.local_world)
        wants = {*({NODE} & heads.keys()), *([rank] if same else ()), *(old[:1] if holding.sharded else ())}
        result.append(RankHoldings(states, frozenset(wants), same))
    return result


def fetch(
    group: Any, contents: Sources, rank: int, said: Sequence[RankHoldings], templates: Mapping[str, Template]
) -> tuple[dict[str, Any], dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """Return the replicated trees; the tree of this rank, None at another world size; and the filled templates.

    A collective; `said` is the result of `rank_holdings`. The templates are filled from shards of any world size.
    Raises `TensorsMissing`, `TensorsDiffer`, and `CheckpointDamaged` for a tree that cannot be loaded safely, on all
    ranks. Other ranks may still read the memory of this node when it returns: synchronize all ranks before a write.

    If several ranks have the same state, the first of them sends it, and the others only tensors of equal leaves: the
    bytes of a tree depend on which of its strings are one object, and a script may keep values that differ by rank.
    """
    sources = {who: at for at, holding in reversed(list(enumerate(said))) for who in holding.held}
    local = all(holding.wants <= holding.held.keys() for holding in said) and not templates
    trunks = _trunks(group, said, sources, contents, rank, local=local)

    needs: dict[str, TensorPiece] = {}
    tensors = {who: _tensors(who, skeleton, contents, needs) for who, skeleton in trunks.items()}
    old = min((who for who in sources if who != NODE), default=None)
    sharded = _fill(templates, *((trunks.get(old), tensors.get(old)) if old is not None else (None, None)), needs)
    if not local:
        exchange(group, _offers(said, sources, contents, rank), needs)

    replicated = tree.merge_tensors(trunks[NODE].rest, tensors[NODE]) if NODE in trunks else {}
    own = tree.merge_tensors(trunks[rank].rest["own"], tensors[rank]) if said[rank].same_world else None
    return replicated, own, sharded


def _offers(
    said: Sequence[RankHoldings], sources: Mapping[int, int], contents: Sources, rank: int
) -> dict[str, list[TensorPiece]]:
    """Return the tensors that this rank offers: those that a rank lacks, if equal to those of the first owner."""
    offers: dict[str, list[TensorPiece]] = {}
    all_have_it = all(NODE in holding.held for holding in said)
    for who, content in contents.items():
        if said[rank].held[who].sum != said[sources[who]].held[who].sum:
            continue
        for number, (leaf, tensor) in enumerate(zip(content.meta.leaves, content.tensors, strict=True)):
            if not (who == NODE and all_have_it):
                offers.setdefault(_key(who, number, leaf), []).append(TensorPiece(leaf.box, tensor, leaf.shape))
    return offers


def _trunks(
    group: Any,
    said: Sequence[RankHoldings],
    sources: Mapping[int, int],
    contents: Sources,
    rank: int,
    *,
    local: bool,
) -> dict[int, TreeSkeleton]:
    """Return the trees that this rank needs: its own, or those that the first owner sends; none with `local`."""
    wanted = said[rank].wants
    sizes = {who: said[at].held[who].size for who, at in sources.items()}
    data: dict[int, bytes] = {who: contents[who].encoded for who in wanted if who in contents}
    needs = {
        who: TensorPiece.whole(torch.empty(sizes[who], dtype=torch.uint8, device="cpu"))
        for who in sorted(wanted - data.keys())
    }
    if not local:
        offers = {}
        for who, content in contents.items():
            if sources[who] != rank:
                continue
            sent = torch.frombuffer(bytearray(content.encoded), dtype=torch.uint8)
            offers[f"tree {who}"] = [TensorPiece.whole(sent)]
        exchange(group, offers, {f"tree {who}": piece for who, piece in needs.items()})
    data |= {who: piece.tensor.numpy().tobytes() for who, piece in needs.items()}
    skeletons, wrong = {}, ""
    for who, encoded in data.items():
        meta = meta_decoder.decode(encoded)
        try:
            skeletons[who] = TreeSkeleton(meta.leaves, tree.unpack(meta.rest))
        except pickle.UnpicklingError:
            strange = ", ".join(tree.unsafe(meta.rest)) or "objects that torch.load rejects"
            wrong = f"the in-memory checkpoint contains {strange}, which is not safe to load"
    if said_wrong := [word for word in byte_collectives.gather(wrong.encode(), group) if word]:
        raise CheckpointDamaged(said_wrong[0].decode())
    return skeletons


def _key(who: int, number: int, leaf: TensorLeaf) -> str:
    """Return the name of a tensor for the exchange: that of a sharded tensor, else its tree and number."""
    return f"part {leaf.key}" if leaf.key else f"{'node' if who == NODE else f'rank {who}'} tensor {number}"


def _tensors(who: int, skeleton: TreeSkeleton, contents: Sources, needs: dict[str, TensorPiece]) -> list[torch.Tensor]:
    """Return the tensors of a tree: copies of those on this node, or empty ones that the exchange fills."""
    tensors = []
    for number, leaf in enumerate(skeleton.leaves):
        if leaf.key:
            continue
        if who in contents:
            tensors.append(contents[who].tensors[number].clone())
        else:
            tensors.append(torch.empty(leaf.box.sizes, dtype=getattr(torch, leaf.dtype), device="cpu"))
            needs[_key(who, number, leaf)] = TensorPiece(leaf.box, tensors[-1], leaf.shape)
    return tensors


@torch.no_grad()
def _fill(
    templates: Mapping[str, Template],
    skeleton: TreeSkeleton | None,
    plain: Sequence[torch.Tensor] | None,
    needs: dict[str, TensorPiece],
) -> dict[str, dict[str, Any]]:
    """Return the trees of the templates with the saved plain values, and add their tensors to `needs`."""
    if templates and (skeleton is None or plain is None):
        raise TensorsMissing(f"no rank has any part of {', '.join(templates)}")
    sharded: dict[str, dict[str, Any]] = {}
    shards = LocalShards()
    for name, template in templates.items():
        assert skeleton is not None
        values = skeleton.rest["values"].get(name, {})
        leaves = {leaf.key: leaf for leaf in skeleton.leaves if leaf.key}
        saved: dict[str, SavedTensor | None] = dict.fromkeys(values)
        for full, leaf in leaves.items():
            if full.startswith(f"{name}/"):
                saved[full.removeprefix(f"{name}/")] = SavedTensor(leaf.shape, getattr(torch, leaf.dtype))
        sharded[name] = {}
        for key, item in template(saved).items():
            full = f"{name}/{key}"
            filled = item
            if key in values:
                filled = tree.merge_tensors(values[key], plain or ())
            elif isinstance(item, torch.Tensor) or full in leaves:
                if not isinstance(item, torch.Tensor):
                    filled = torch.empty(leaves[full].shape, dtype=getattr(torch, leaves[full].dtype), device="cpu")
                part, box = shards.local(filled)
                shape = tuple(filled.shape)
                needs[f"part {full}"] = TensorPiece(box or Box.whole(shape), part, shape)
            sharded[name][key] = filled
    return sharded
