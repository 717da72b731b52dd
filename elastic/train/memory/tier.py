"""In-memory checkpoints: the newest commits in memory that outlives the workers of a node, and their restore.

After a node failure the survivors resume from the newest step that all of them have, joining nodes receive it from a
survivor, and no disk is read. The first worker of a node writes the replicated components, once for the node; each
worker writes its own values and its shards. Shards are also copied to the next nodes (`copies`), because a failed node
takes its memory with it.

The largest memory of a node: 2 x the replicated components + 2 x (1 + copies) x the own and sharded components of its
workers, and 64 kB for each. The agent owns it, and it is freed when the agent exits for any reason.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch

from elastic.channel.client import ChannelClient
from elastic.train import report
from elastic.train.comm import byte_collectives
from elastic.train.comm.local_shard import LocalShards
from elastic.train.memory import transfer
from elastic.train.memory.double_buffer import DoubleBuffer
from elastic.train.memory.overhead import CommitOverhead
from elastic.train.memory.peer_copy import PeerReplicator
from elastic.train.memory.slot import LeafSpec, Slot, SlotContent, SlotHead, SlotLayout, SlotMemoryShort, SlotSizes
from elastic.train.memory.step_agreement import AgreedStep, RankStates, agree, describe_states
from elastic.train.statedict import tree
from elastic.train.statedict.sharded import Template

LOCAL_RANKS_MAX = 64
DISTANCES_MAX = 8
"""The limits of the search for states of an earlier generation on this node."""

Trees = Mapping[str, Any]
Kind = Literal["node", "rank", "copy"]


class MemoryTier:
    """The in-memory checkpoints of one rank. `on` is False once commits no longer save to memory."""

    def __init__(
        self,
        end: ChannelClient | None,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        local_world_size: int,
        mark: str,
        group: Any,
        copies: int = 1,
        owner: str = "",
    ) -> None:
        """`mark` is the fencing token; `group` a gloo group of all ranks, None at world size 1.

        `owner` is the prefix of the names of the segments, so that each state of a script has separate memory.
        """
        self.on = True
        self._end = end if mark else None
        self._owner = owner
        self._rank, self._local_rank = rank, local_rank
        self._world, self._local_world = world_size, local_world_size
        self._mark, self._group = mark, group
        nodes = max(1, world_size // max(1, local_world_size))
        distances = range(1, min(copies, nodes - 1) + 1) if world_size == nodes * local_world_size else ()
        self._replicators = {d: PeerReplicator(group, rank, world_size, local_world_size, d) for d in distances}
        self._together = False
        """Whether ranks copy shards to each other; then all of them take part in every commit."""
        self._bare = nodes > 1 and not self._replicators
        self._pairs: dict[str, DoubleBuffer] = {}
        self._used: set[str] = set()
        self._layouts: dict[str, SlotLayout] = {}
        self._shards = LocalShards()
        self._restored: tuple[str, int] | None = None
        self._found: list[tuple[Kind, SlotContent]] = []
        """The result of the last scan, until it is fetched."""
        self._count = 0
        self._refused = ""
        self._warned: set[str] = set()
        self._overhead = CommitOverhead()

    # Commits.

    def commit(self, step: int, replicated: Trees, own: Trees, sharded: Mapping[str, Trees]) -> None:
        """Save a state to memory. Every rank calls it, with the same names.

        If there is no memory, it logs a warning and does not raise. Raises gloo's RuntimeError if a rank has exited.
        """
        if not self.on:
            return
        began = time.perf_counter()
        self._count += 1
        head = SlotHead(
            mark=self._mark,
            step=step,
            count=self._count,
            rank=self._rank,
            world=self._world,
            local_world=self._local_world,
            replicated=bool(replicated),
            sharded=bool(sharded),
        )
        if self._count == 1:
            self._found = []
            self._begin(bool(sharded))
        written = None
        if not self._refused:
            try:
                if self._local_rank == 0 and replicated:
                    packed, tensors = tree.pack(dict(replicated))
                    specs = [LeafSpec("", tensor.dtype, tensor.shape) for tensor in tensors]
                    self._write("node", head, packed, specs, tensors)
                if own or sharded:
                    written = self._write(self._own_name, head, *self._taken(own, sharded))
            except (SlotMemoryShort, TypeError) as error:
                self._give_up(str(error))
        if self._together:
            self._copy(step, written)
        if self._count == 2:
            self._drop_old()
        line = self._overhead.line(began, time.perf_counter())
        if line and self._rank == 0:
            report.log_to_agent(line, warn=True)

    @property
    def _own_name(self) -> str:
        return f"rank{self._local_rank}"

    def _begin(self, sharded: bool) -> None:
        """Find out whether any rank has memory, if ranks copy shards to each other, and log what is not saved."""
        if self._end is None:
            self._refused = "in-memory checkpoints are off: there is no agent; start the script with elastic-launch"
            if self._rank == 0:
                report.log_to_agent(self._refused)
        if sharded and self._replicators:
            self._together = b"on" in byte_collectives.gather(b"" if self._refused else b"on", self._group)
        self.on = self._together or not self._refused
        if sharded and self._bare and self._rank == 0 and self.on:
            report.log_to_agent(
                "shards have no copy on another node (memory_copies=0): after a node failure they are read from disk",
                warn=True,
            )

    def _taken(self, own: Trees, sharded: Mapping[str, Trees]) -> tuple[bytes, list[LeafSpec], list[torch.Tensor]]:
        """Return the components of this rank: the packed tree, and the tensors, those of the tree first."""
        values: dict[str, dict[str, Any]] = {}
        pieces: list[tuple[str, torch.Tensor]] = []
        for name, part in sharded.items():
            values[name] = {key: item for key, item in part.items() if not isinstance(item, torch.Tensor)}
            pieces += [(f"{name}/{key}", item) for key, item in part.items() if isinstance(item, torch.Tensor)]
        packed, tensors = tree.pack({"own": dict(own), "values": values})
        specs = [LeafSpec("", tensor.dtype, tensor.shape) for tensor in tensors]
        with torch.no_grad():
            for key, item in pieces:
                local, box = self._shards.local(item)
                specs.append(LeafSpec(key, local.dtype, item.shape, box))
                tensors.append(local)
        return packed, specs, tensors

    def _write(
        self, name: str, head: SlotHead, packed: bytes, specs: Sequence[LeafSpec], tensors: Sequence[torch.Tensor]
    ) -> tuple[Slot, SlotSizes]:
        layout = self._layouts.get(name)
        if layout is None or layout.specs != specs:
            _check(tensors, packed)
            layout = self._layouts[name] = SlotLayout(specs)
        meta = layout.meta(head, packed)
        pair = self._pair(name)
        slot = pair.make_room(layout.data_size, len(meta), self._kept)
        sizes = slot.write(layout, meta, tensors)
        pair.wrote(slot, head.mark, head.step)
        self._used.add(name)
        return slot, sizes

    @property
    def _kept(self) -> tuple[str, int] | None:
        """The state that the first commit must not overwrite: if that commit fails, it is the only one."""
        return self._restored if self._count == 1 else None

    def _copy(self, step: int, written: tuple[Slot, SlotSizes] | None) -> None:
        """Send the shards of this rank to the next nodes, and store those of the previous nodes."""
        for distance, ring in self._replicators.items():
            name = f"copy{distance}.{self._local_rank}"
            pair = None if self._refused else self._pair(name)
            self._used.add(name)
            taken, why = ring.copy(written, pair, self._mark, step, self._kept)
            if why:
                self._say_once(f"no memory for the copy of another node's shards: {why}")
            if written is not None and not taken:
                self._say_once(
                    f"the shards of rank {self._rank} have no copy on another node: after a node failure they are read "
                    "from disk"
                )

    def _give_up(self, why: str) -> None:
        """Stop saving to memory, and free the states, which would become outdated."""
        self._refused = why
        report.log_to_agent(f"rank {self._rank} saves no in-memory checkpoint: {why}", warn=True)
        for name in ("node", self._own_name):
            if name in self._used:
                self._pair(name).drop()
        self.on = self._together

    def _drop_old(self) -> None:
        """Free the memory of earlier generations, which no rank needs after the second commit."""
        for name, pair in self._pairs.items():
            if name not in self._used:
                pair.drop()

    def _pair(self, name: str) -> DoubleBuffer:
        assert self._end is not None
        if name not in self._pairs:
            self._pairs[name] = DoubleBuffer(self._end, self._owner + name)
        return self._pairs[name]

    def _say_once(self, line: str) -> None:
        if line not in self._warned:
            self._warned.add(line)
            report.log_to_agent(line, warn=True)

    # Restore.

    def readable_states(self, *, sharded: bool = False) -> RankStates:
        """Return the states that this rank can read on its node. `sharded`: the script has sharded components."""
        self._found = self._scan_slots()
        return describe_states(self._found, local_world=self._local_world, sharded=sharded)

    def choose(self, holdings: Sequence[RankStates], *, since: int = 0) -> AgreedStep | None:
        """Choose the step to resume from, None if memory has none. The same on every rank.

        `holdings` are the results of `readable_states`, by rank. States of generations before `since` are not valid.
        """
        result = agree(holdings, self._mark.rpartition("/")[0], since)
        if isinstance(result, AgreedStep):
            return result
        if self._rank == 0 and any(rank_states.held for rank_states in holdings):
            report.log_to_agent(f"cannot resume from memory: {result.why}")
        return None

    def fetch(
        self, agreed: AgreedStep, holdings: Sequence[RankStates], templates: Mapping[str, Template]
    ) -> tuple[dict[str, Any], dict[str, Any] | None, dict[str, dict[str, Any]]]:
        """Return the replicated trees, those of this rank (None at another world size), and the filled templates.

        A collective. `templates` describe the sharded components at this world size; their tensors are filled in place.
        Raises `TensorsMissing` and `TensorsDiffer`, on all ranks. Other ranks may still read the memory of this node
        afterwards: synchronize all ranks before the first commit.
        """
        self._restored = (agreed.mark, agreed.step)
        entries, self._found = self._found, []
        contents: dict[int, SlotContent] = {}
        for kind, content in entries:
            if (content.head.mark, content.head.step) == self._restored:
                contents.setdefault(transfer.NODE if kind == "node" else content.head.rank, content)
        said = transfer.rank_holdings(holdings, agreed.mark, agreed.step)
        return transfer.fetch(self._group, contents, self._rank, said, templates)

    def _scan_slots(self) -> list[tuple[Kind, SlotContent]]:
        """Return the states on this node that this rank offers; every rank offers the replicated components."""
        if self._end is None:
            return []
        entries: list[tuple[Kind, SlotContent]] = []
        if self._local_rank == 0:
            entries += [("node", content) for content in self._pair("node").read_slots()]
        else:
            entries += [("node", content) for content in DoubleBuffer(self._end, f"{self._owner}node").read_slots()]
        for local in range(self._local_rank, LOCAL_RANKS_MAX, max(1, self._local_world)):
            names = [(f"rank{local}", "rank"), *((f"copy{d}.{local}", "copy") for d in range(1, DISTANCES_MAX + 1))]
            there = False
            for name, kind in names:
                pair = self._pair(name)
                entries += [(cast("Kind", kind), content) for content in pair.read_slots()]
                there = there or pair.there
                if kind == "copy" and not pair.there:
                    break
            if not there:
                break
        return entries


def _check(tensors: Sequence[torch.Tensor], packed: bytes) -> None:
    """Raise `TypeError` for tensors and objects that a slot cannot store or a restore cannot load."""
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise TypeError(f"cannot store a tensor with {tensor.layout} and {tensor.dtype}")
    if strange := tree.unsafe(packed):
        raise TypeError(f"the state contains {', '.join(strange)}, which torch.load(weights_only=True) rejects")
