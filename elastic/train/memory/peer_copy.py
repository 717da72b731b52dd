"""Replicates the shards of each rank in the memory of other nodes, because a failed node takes its memory with it.

A rank sends the bytes of its newest slot to the rank with the same local rank on the next node, and receives those of
the rank before. There are three rounds: the size, whether there is room, and the bytes. All ranks take part in all
rounds, even a rank that has nothing to send or no room, so that no rank waits for a message that is never sent.
"""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import torch
import torch.distributed as dist

from elastic.train.memory.double_buffer import DoubleBuffer
from elastic.train.memory.slot import Slot, SlotMemoryShort, SlotSizes

MESSAGE_BYTES_MAX = 64 << 20
_FIELDS = 4
_TAG = 1 << 20
"""The first of the tags that `exchange` does not use."""


class PeerReplicator:
    """The neighbours of one rank at one distance, in nodes."""

    def __init__(self, group: Any, rank: int, world: int, local_world: int, distance: int) -> None:
        """`group` is a gloo group of all ranks; a node has `local_world` of them."""
        self._group = group
        self._to = (rank + distance * local_world) % world
        self._from = (rank - distance * local_world) % world
        self._tag = _TAG + 4 * distance

    def copy(
        self,
        sent: tuple[Slot, SlotSizes] | None,
        pair: DoubleBuffer | None,
        mark: str,
        step: int,
        protected: tuple[str, int] | None,
    ) -> tuple[bool, str]:
        """Send a slot to the next node, and receive that of the previous node into `pair`; a collective.

        `sent` None: nothing to send; `pair` None: no room. `mark` and `step` are those of this commit, on all ranks;
        `protected` is as in `DoubleBuffer.make_room`. Returns whether the next node took the copy, and why this node
        had no room for the other copy, "" if it had. Raises gloo's RuntimeError if a neighbour has exited.
        """
        own = torch.zeros(_FIELDS, dtype=torch.int64, device="cpu")
        if sent is not None:
            own[:] = torch.tensor([1, *astuple(sent[1])], device="cpu")
        comes, *sizes = self._exchange_ints(own, to=self._to, source=self._from, tag=0)
        theirs = SlotSizes(*sizes)
        slot, why = None, ""
        if comes and pair is not None:
            try:
                slot = pair.make_room(theirs.data, theirs.meta, protected)
            except SlotMemoryShort as error:
                why = str(error)
        answer = torch.tensor([int(slot is not None)], device="cpu")
        taken = self._exchange_ints(answer, to=self._from, source=self._to, tag=1) == [1]
        works: list[Any] = []
        if slot is not None:
            source = self._rank(self._from)
            pieces = slot.stretches(theirs, MESSAGE_BYTES_MAX)
            works += [dist.irecv(piece, source, group=self._group, tag=self._tag + 2) for piece in pieces]
        if sent is not None and taken:
            to = self._rank(self._to)
            pieces = sent[0].stretches(sent[1], MESSAGE_BYTES_MAX)
            works += [dist.isend(piece, to, group=self._group, tag=self._tag + 2) for piece in pieces]
        for work in works:
            work.wait()
        if slot is not None and pair is not None:
            slot.finish(theirs)
            pair.wrote(slot, mark, step)
        return taken, why

    def _exchange_ints(self, word: torch.Tensor, *, to: int, source: int, tag: int) -> list[int]:
        """Send a few numbers to one neighbour, and receive as many from the other."""
        heard = torch.zeros_like(word)
        works = [
            dist.irecv(heard, self._rank(source), group=self._group, tag=self._tag + tag),
            dist.isend(word, self._rank(to), group=self._group, tag=self._tag + tag),
        ]
        for work in works:
            work.wait()  # type: ignore[union-attr]  # None only for ranks outside the group.
        return heard.tolist()

    def _rank(self, rank: int) -> int:
        return rank if self._group is None else dist.get_global_rank(self._group, rank)
