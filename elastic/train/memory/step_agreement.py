"""The agreement of all ranks on one of the steps in the memory of their nodes (pure).

Rules
-----
1. Only states of this incarnation are valid, from generation `since` on.
2. The highest generation of which any node has a state wins. A node that has only older states is a joining node.
3. A step is complete if a node has its replicated components, and a rank has every element of its sharded components,
   in its own shard or in the copy of a neighbour's shard.
4. Of the complete steps, the ranks take the newest that all owners of that generation have; if they have none in
   common, the newest complete step.
5. If no step of that generation is complete, the previous generation serves only if the newer one has not got beyond
   its first commit: then no more than that step is lost. Otherwise the disk has a newer step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from elastic.errors import TensorsMissing
from elastic.train.comm.tensor_boxes import Box, plan_transfers
from elastic.train.memory.slot import SlotContent, SlotHead


class ShardRegion(msgspec.Struct, frozen=True, array_like=True):
    """The global shape of a sharded tensor, and the box that a rank has."""

    shape: tuple[int, ...]
    box: Box


class StoredState(msgspec.Struct, frozen=True):
    """One state in memory: the replicated components of a node, the own and sharded ones of a rank, or a copy of those.

    `cuts` is the index in `RankStates.cuts` of its sharded tensors. `size` is the size of its meta in bytes, and `sum`
    the checksum of its leaves.
    """

    kind: Literal["node", "rank", "copy"]
    head: SlotHead
    cuts: int = -1
    size: int = 0
    sum: int = 0


class RankStates(msgspec.Struct, frozen=True):
    """All states that one rank can read. States with the same tensors share an entry of `cuts`.

    `local_world` is the number of workers on its node; `sharded`: its script has sharded components.
    """

    held: tuple[StoredState, ...] = ()
    cuts: tuple[dict[str, ShardRegion], ...] = ()
    local_world: int = 1
    sharded: bool = False


class AgreedStep(msgspec.Struct, frozen=True):
    """The step to resume from, its fencing token, and the reason for the choice."""

    step: int
    mark: str
    why: str


class NoCommonStep(msgspec.Struct, frozen=True):
    """No step can be restored from memory, with the reason."""

    why: str


def agree(holdings: Sequence[RankStates], incarnation: str, since: int = 0) -> AgreedStep | NoCommonStep:
    """Choose the step to resume from, given the states of every rank; the same on every rank."""
    generations: dict[int, list[tuple[int, StoredState]]] = {}
    for rank, holding in enumerate(holdings):
        for held in holding.held:
            whose, _, number = held.head.mark.rpartition("/")
            if whose == incarnation and number.isdecimal() and int(number) >= since:
                generations.setdefault(int(number), []).append((rank, held))
    if not generations:
        return NoCommonStep("no node has an in-memory checkpoint of this job")
    why = ""
    for g in sorted(generations, reverse=True):
        result = _newest(g, generations[g], holdings)
        if isinstance(result, AgreedStep):
            return result
        why = why or result.why
        if any(held.head.count > 1 for _, held in generations[g]):
            break
    return NoCommonStep(why)


def _newest(
    g: int, all_held: Sequence[tuple[int, StoredState]], holdings: Sequence[RankStates]
) -> AgreedStep | NoCommonStep:
    steps = {held.head.step for _, held in all_held}
    by_holder: dict[tuple[int, str], set[int]] = {}
    for rank, held in all_held:
        if held.kind != "copy":
            by_holder.setdefault((rank, f"{held.kind}{held.head.rank}"), set()).add(held.head.step)
    common = steps.intersection(*by_holder.values())
    why = ""
    for step in sorted(steps, key=lambda step: (step in common, step), reverse=True):
        missing = _missing([(rank, held) for rank, held in all_held if held.head.step == step], holdings)
        if not missing:
            reason = "the newest that all nodes have" if step in common else "the newest complete one"
            return AgreedStep(step, all_held[0][1].head.mark, f"step {step} of generation {g} is {reason}")
        why = why or f"step {step} of generation {g} is incomplete: {missing}"
    return NoCommonStep(why)


def _missing(held: Sequence[tuple[int, StoredState]], holdings: Sequence[RankStates]) -> str:
    """Return what a step lacks; "" if it is complete."""
    if any(state.head.replicated for _, state in held) and not any(state.kind == "node" for _, state in held):
        return "no node has its replicated components"
    if not any(state.head.sharded for _, state in held):
        return ""
    offers: dict[str, list[Box]] = {}
    needs: dict[str, Box] = {}
    for rank, state in held:
        if state.cuts >= 0:
            for key, cut in holdings[rank].cuts[state.cuts].items():
                offers.setdefault(key, []).append(cut.box)
                needs[key] = Box.whole(cut.shape)
    if not needs:
        return "no rank has any of its sharded components"
    try:
        plan_transfers([offers], [needs])
    except TensorsMissing as error:
        lost = sorted(
            set(range(held[0][1].head.world)) - {state.head.rank for _, state in held if state.kind != "node"}
        )
        whose = f"the shards of rank {', '.join(map(str, lost))} are lost: " if lost else ""
        return whose + str(error).partition(", which")[0]
    return ""


def describe_states(
    contents: Iterable[tuple[Literal["node", "rank", "copy"], SlotContent]],
    *,
    local_world: int = 1,
    sharded: bool = False,
) -> RankStates:
    """Return the report of a rank about the states that it can read."""
    held, cuts = [], list[Mapping[str, ShardRegion]]()
    for kind, content in contents:
        leaves = content.meta.leaves
        parts = {leaf.key: ShardRegion(leaf.shape, leaf.box) for leaf in leaves if leaf.key}
        if kind != "node" and content.head.sharded and parts not in cuts:
            cuts.append(parts)
        number = cuts.index(parts) if parts in cuts else -1
        checksum = zlib.crc32(msgspec.msgpack.encode(leaves))
        held.append(StoredState(kind, content.head, number, len(content.encoded), checksum))
    return RankStates(tuple(held), tuple(dict(cut) for cut in cuts), local_world, sharded)
