"""A state comes out of the nodes' memory: to every rank of a new world, from whoever holds it.

All ranks know already who holds what. Up to three rounds: the trees without their tensors, whether all can be taken,
the tensors. What a rank can read on its own node does not go over the network, and where every rank has all that it
needs there, the second round is the only one. Nothing is read from disk.
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
"""Stands for the replicated parts where others have the number of a rank."""


Sources = Mapping[int, SlotContent]
"""What this rank can read of one step: the replicated parts under `NODE`, other parts by the rank they are of."""


@dataclass(frozen=True)
class TreeSkeleton:
    """A tree without its tensors, and what is known of them."""

    leaves: tuple[TensorLeaf, ...]
    rest: Any


@dataclass(frozen=True)
class RankHoldings:
    """What a rank can read of one step, by whose it is, and what it needs of that."""

    held: Mapping[int, StoredState]
    wants: frozenset[int]
    same_world: bool
    """Whether its own parts are those of a worker at its place in a world like this one."""


def rank_holdings(holdings: Sequence[RankStates], mark: str, step: int) -> list[RankHoldings]:
    """What each rank has and needs of a step. The same on every rank."""
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
    """The replicated trees; this rank's own parts, None if the world is another one; and the filled templates.

    Every rank calls it; `said` is what `rank_holdings` found. What `templates` make is filled from the shards of any
    world. Raises `TensorsMissing`, `TensorsDiffer`, and `CheckpointDamaged` for a tree that is not plain; on all ranks.
    Others may still read this node's memory when it returns: all meet once more before anything is written there.

    What several ranks hold is sent by the first of them, and by others only as far as their leaves are the same: the
    bytes of a tree depend on which of its texts are one object, and a script may keep values that differ by rank.
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
    """The tensors that this rank can give: what not everybody has, and as it is with the first who has it."""
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
    """The trees that this rank wants, its own or sent by the first rank that has them; none is with `local`."""
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
            strange = ", ".join(tree.unsafe(meta.rest)) or "what torch.load refuses"
            wrong = f"the copy in memory holds {strange}, which is not loaded for safety"
    if said_wrong := [word for word in byte_collectives.gather(wrong.encode(), group) if word]:
        raise CheckpointDamaged(said_wrong[0].decode())
    return skeletons


def _key(who: int, number: int, leaf: TensorLeaf) -> str:
    """The name of a tensor among the ranks: of a sharded one its own, else where it stands in which tree."""
    return f"part {leaf.key}" if leaf.key else f"{'node' if who == NODE else f'rank {who}'} tensor {number}"


def _tensors(who: int, skeleton: TreeSkeleton, contents: Sources, needs: dict[str, TensorPiece]) -> list[torch.Tensor]:
    """The tensors of a tree: copies of what is on this node, or empty ones that the exchange fills."""
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
    """The templates for what was kept, with the old values; their tensors go to the needs."""
    if templates and (skeleton is None or plain is None):
        raise TensorsMissing(f"no rank holds anything of {', '.join(templates)}")
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
