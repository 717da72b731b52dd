"""A state comes out of the nodes' memory: to every rank of a new world, from whoever holds it.

Three rounds: who holds what; the trees without their tensors; the tensors. What a rank can read on its own node does
not go over the network. Nothing is read from disk.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from elastic.errors import CheckpointDamaged, TensorsMissing
from elastic.train import talk, tree
from elastic.train.boxes import Box
from elastic.train.exchange import Piece, exchange
from elastic.train.shardedparts import Stored, Template
from elastic.train.shards import Shards
from elastic.train.slots import Content, Head, Leaf

NODE = -1
"""Stands for the replicated parts where others have the number of a rank."""


Sources = Mapping[int, Content]
"""What this rank can read of one step: the replicated parts under `NODE`, other parts by the rank they are of."""


class Has(msgspec.Struct, frozen=True):
    """What a rank says in the first round: what it can read, how long each tree is, and the sums of their leaves."""

    sizes: dict[int, int]
    heads: dict[int, Head]
    sums: dict[int, int]


@dataclass(frozen=True)
class Trunk:
    """A tree without its tensors, and what is known of them."""

    leaves: tuple[Leaf, ...]
    rest: Any


def fetch(
    group: Any, mine: Sources, rank: int, world: int, local_world: int, templates: Mapping[str, Template]
) -> tuple[dict[str, Any], dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """The replicated trees; this rank's own parts, None if the world is another one; and the filled templates.

    Every rank calls it. What `templates` make is filled from the shards of any world. Raises
    `TensorsMissing`, `TensorsDiffer`, and `CheckpointDamaged` for a tree that is not plain; on all ranks.

    What several ranks hold is sent by the first of them, and by others only as far as their leaves are the same: the
    bytes of a tree depend on which of its texts are one object, and a script may keep values that differ by rank.
    """
    has = Has(
        {who: len(_trunk(one)) for who, one in mine.items()},
        {who: one.head for who, one in mine.items()},
        {who: zlib.crc32(msgspec.json.encode(one.leaves)) for who, one in mine.items()},
    )
    said = [msgspec.json.decode(one, type=Has) for one in talk.gather(msgspec.json.encode(has), group)]
    heads = {who: head for one in reversed(said) for who, head in one.heads.items()}
    old = sorted(who for who in heads if who != NODE)
    same_world = rank in heads and (heads[rank].world, heads[rank].local_world) == (world, local_world)
    wanted = {who for who in (NODE,) if who in heads} | ({rank} if same_world else set())
    wanted |= {old[0]} if templates and old else set()
    sources = {who: at for at, one in reversed(list(enumerate(said))) for who in one.sizes}
    trunks = _trunks(group, said, sources, mine, rank, wanted)

    offers: dict[str, list[Piece]] = {}
    all_have_it = all(NODE in one.sizes for one in said)
    for who, content in mine.items():
        if has.sums[who] != said[sources[who]].sums[who]:
            continue
        for number, (leaf, tensor) in enumerate(zip(content.leaves, content.tensors, strict=True)):
            if not (who == NODE and all_have_it):
                offers.setdefault(_key(who, number, leaf), []).append(Piece(leaf.box, tensor, leaf.shape))
    needs: dict[str, Piece] = {}
    found = {who: _tensors(who, trunk, mine, needs) for who, trunk in trunks.items()}
    sharded = _fill(templates, trunks.get(old[0]) if old else None, found.get(old[0]) if old else None, needs)
    exchange(group, offers, needs)
    talk.gather(b"", group)  # From here on nobody reads the memory, and it may be written again.

    replicated = tree.put_together(trunks[NODE].rest, found[NODE]) if NODE in trunks else {}
    own = tree.put_together(trunks[rank].rest["own"], found[rank]) if same_world else None
    return replicated, own, sharded


def _trunk(content: Content) -> bytes:
    """Leaves and the rest of a tree, as they are sent."""
    leaves = msgspec.json.encode(content.leaves)
    return len(leaves).to_bytes(8, "little") + leaves + content.rest


def _trunks(
    group: Any, said: Sequence[Has], sources: Mapping[int, int], mine: Sources, rank: int, wanted: set[int]
) -> dict[int, Trunk]:
    """The trees that this rank wants, its own or sent by the first rank that has them."""
    sizes = {who: said[at].sizes[who] for who, at in sources.items()}
    data: dict[int, bytes] = {who: _trunk(mine[who]) for who in wanted if who in mine}
    needs = {
        who: Piece(Box.whole((sizes[who],)), torch.empty(sizes[who], dtype=torch.uint8, device="cpu"), (sizes[who],))
        for who in sorted(wanted - data.keys())
    }
    offers = {}
    for who, content in mine.items():
        if sources[who] != rank:
            continue
        sent = torch.frombuffer(bytearray(_trunk(content)), dtype=torch.uint8)
        offers[f"tree {who}"] = [Piece(Box.whole(sent.shape), sent, tuple(sent.shape))]
    exchange(group, offers, {f"tree {who}": piece for who, piece in needs.items()})
    data |= {who: piece.tensor.numpy().tobytes() for who, piece in needs.items()}
    found, wrong = {}, ""
    for who, one in data.items():
        end = 8 + int.from_bytes(one[:8], "little")
        try:
            found[who] = Trunk(msgspec.json.decode(one[8:end], type=tuple[Leaf, ...]), tree.unpack(one[end:]))
        except pickle.UnpicklingError:
            strange = ", ".join(tree.unsafe(one[end:])) or "what torch.load refuses"
            wrong = f"the copy in memory holds {strange}, which is not loaded for safety"
    if said_wrong := [word for word in talk.gather(wrong.encode(), group) if word]:
        raise CheckpointDamaged(said_wrong[0].decode())
    return found


def _key(who: int, number: int, leaf: Leaf) -> str:
    """The name of a tensor among the ranks: of a sharded one its own, else where it stands in which tree."""
    return f"part {leaf.key}" if leaf.key else f"{'node' if who == NODE else f'rank {who}'} tensor {number}"


def _tensors(who: int, trunk: Trunk, mine: Sources, needs: dict[str, Piece]) -> list[torch.Tensor]:
    """The tensors of a tree: copies of what is on this node, or empty ones that the exchange fills."""
    found = []
    for number, leaf in enumerate(trunk.leaves):
        if leaf.key:
            continue
        if who in mine:
            found.append(mine[who].tensors[number].clone())
        else:
            found.append(torch.empty(leaf.box.sizes, dtype=getattr(torch, leaf.dtype), device="cpu"))
            needs[_key(who, number, leaf)] = Piece(leaf.box, found[-1], leaf.shape)
    return found


def _fill(
    templates: Mapping[str, Template],
    trunk: Trunk | None,
    plain: Sequence[torch.Tensor] | None,
    needs: dict[str, Piece],
) -> dict[str, dict[str, Any]]:
    """The templates for what was kept, with the old values; their tensors go to the needs."""
    if templates and (trunk is None or plain is None):
        raise TensorsMissing(f"no rank holds anything of {', '.join(templates)}")
    sharded: dict[str, dict[str, Any]] = {}
    shards = Shards()
    for name, template in templates.items():
        assert trunk is not None
        values = trunk.rest["values"].get(name, {})
        leaves = {leaf.key: leaf for leaf in trunk.leaves if leaf.key}
        saved: dict[str, Stored | None] = dict.fromkeys(values)
        for full, leaf in leaves.items():
            if full.startswith(f"{name}/"):
                saved[full.removeprefix(f"{name}/")] = Stored(leaf.shape, getattr(torch, leaf.dtype))
        sharded[name] = {}
        for key, item in template(saved).items():
            full = f"{name}/{key}"
            filled = item
            if key in values:
                filled = tree.put_together(values[key], plain or ())
            elif isinstance(item, torch.Tensor) or full in leaves:
                if not isinstance(item, torch.Tensor):
                    filled = torch.empty(leaves[full].shape, dtype=getattr(torch, leaves[full].dtype), device="cpu")
                part, box = shards.local(filled)
                shape = tuple(filled.shape)
                needs[f"part {full}"] = Piece(box or Box.whole(shape), part, shape)
            sharded[name][key] = filled
    return sharded
