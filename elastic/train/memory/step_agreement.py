"""Which step all ranks go on from, of those that lie in the memory of their nodes (pure).

Rules
-----
1. Only what the generations of this incarnation wrote counts, and nothing before generation `since`.
2. The highest generation counts of which anything is held. A node that holds only older ones is a newcomer.
3. A step is complete if the replicated parts lie on some node and every element of the sharded parts is held by some
   rank, its own or as a neighbour's copy.
4. Of the complete steps the newest that all holders of that generation have is taken; if they have none in common, the
   newest complete one.
5. Where nothing of that generation is complete, the one before serves only if the newer has not got beyond its first
   commit: then no more than that step is lost. In any other case the disk has newer work.
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
    """The shape of a sharded tensor, and the part that is held."""

    shape: tuple[int, ...]
    box: Box


class StoredState(msgspec.Struct, frozen=True):
    """One state in memory: the replicated parts of a node, a rank's own and sharded ones, or a copy of such.

    `cuts` names the entry of `RankStates.cuts` with the sharded tensors in it. `size` is how many bytes describe it,
    and `sum` the checksum of its leaves.
    """

    kind: Literal["node", "rank", "copy"]
    head: SlotHead
    cuts: int = -1
    size: int = 0
    sum: int = 0


class RankStates(msgspec.Struct, frozen=True):
    """All that one rank can read. States with the same tensors share an entry of `cuts`.

    `local_world` is how many workers its node has, and `sharded` says whether its script has sharded parts.
    """

    held: tuple[StoredState, ...] = ()
    cuts: tuple[dict[str, ShardRegion], ...] = ()
    local_world: int = 1
    sharded: bool = False


class AgreedStep(msgspec.Struct, frozen=True):
    """The step to go on from, whose mark it has, and the sentence that says why this one."""

    step: int
    mark: str
    why: str


class NoCommonStep(msgspec.Struct, frozen=True):
    """No step can be restored from memory, and why."""

    why: str


def agree(holdings: Sequence[RankStates], incarnation: str, since: int = 0) -> AgreedStep | NoCommonStep:
    """Choose the step to go on from, by what every rank says. The same on every rank."""
    generations: dict[int, list[tuple[int, StoredState]]] = {}
    for rank, holding in enumerate(holdings):
        for held in holding.held:
            whose, _, number = held.head.mark.rpartition("/")
            if whose == incarnation and number.isdecimal() and int(number) >= since:
                generations.setdefault(int(number), []).append((rank, held))
    if not generations:
        return NoCommonStep("no node holds anything of this job in its memory")
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
            reason = "the newest that all have" if step in common else "the newest that is whole"
            return AgreedStep(step, all_held[0][1].head.mark, f"step {step} of generation {g} is {reason}")
        why = why or f"step {step} of generation {g} is not whole: {missing}"
    return NoCommonStep(why)


def _missing(held: Sequence[tuple[int, StoredState]], holdings: Sequence[RankStates]) -> str:
    """What is missing of a step, in words; "" if it is whole."""
    if any(state.head.replicated for _, state in held) and not any(state.kind == "node" for _, state in held):
        return "no node holds its replicated parts"
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
        return "no rank holds anything of its sharded parts"
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
    """What a rank says of the states that it can read, and of itself."""
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
