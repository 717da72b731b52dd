"""Boxes of a global tensor, and the plan of the transfers between ranks (pure).

A sharded tensor is split into boxes, one for each rank; a replicated tensor is one box on many ranks. Splitting the
needed boxes along the offered boxes converts any layout to any other. The plan depends only on the requests of all
ranks, so every rank computes the same plan and none has to send it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import msgspec

from elastic.errors import TensorsMissing


class Box(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A part of a global tensor: its offset and size, in elements, for each dimension.

    A tensor without dimensions has the box `Box((), ())`, with one element.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Box:
        """Return the box of a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.sizes)

    def inside(self, shape: Sequence[int]) -> bool:
        """Return whether this is a part of a tensor of `shape`."""
        return len(self.offsets) == len(self.sizes) == len(shape) and all(
            offset >= 0 and size >= 0 and offset + size <= length
            for offset, size, length in zip(self.offsets, self.sizes, shape, strict=True)
        )

    def __str__(self) -> str:
        return f"[{', '.join(f'{o}:{o + s}' for o, s in zip(self.offsets, self.sizes, strict=True))}]"


class Transfer(msgspec.Struct, frozen=True):
    """The transfer of one part of a tensor from a rank to a rank; a local copy if both are the same."""

    source: int
    target: int
    key: str
    box: Box


def overlap(a: Box, b: Box) -> Box | None:
    """Return the intersection of two boxes of a tensor, None if it is empty."""
    if len(a.sizes) != len(b.sizes):
        return None
    offsets, sizes = [], []
    for a_offset, a_size, b_offset, b_size in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True):
        start, end = max(a_offset, b_offset), min(a_offset + a_size, b_offset + b_size)
        if start >= end:
            return None
        offsets.append(start)
        sizes.append(end - start)
    return Box(tuple(offsets), tuple(sizes))


def subtract(box: Box, part: Box) -> list[Box]:
    """Return the rest of a box without a part inside it, as boxes that do not overlap."""
    left = []
    offsets, sizes = list(box.offsets), list(box.sizes)
    for d, (start, size) in enumerate(zip(part.offsets, part.sizes, strict=True)):
        for begin, end in ((offsets[d], start), (start + size, offsets[d] + sizes[d])):
            if begin < end:
                left.append(Box((*offsets[:d], begin, *offsets[d + 1 :]), (*sizes[:d], end - begin, *sizes[d + 1 :])))
        offsets[d], sizes[d] = start, size
    return left


def split(box: Box, numel_max: int) -> Iterator[Box]:
    """Split a box along its first dimensions until no part has more than `numel_max` elements (at least 1).

    The parts are in the order of their elements; each is contiguous if the box is.
    """
    if box.numel <= max(numel_max, 1):
        yield box
        return
    d = next(d for d, size in enumerate(box.sizes) if size > 1)
    step = max(1, numel_max // prod(box.sizes[d + 1 :]))
    for start in range(0, box.sizes[d], step):
        offsets = (*box.offsets[:d], box.offsets[d] + start, *box.offsets[d + 1 :])
        sizes = (*box.sizes[:d], min(step, box.sizes[d] - start), *box.sizes[d + 1 :])
        yield from split(Box(offsets, sizes), numel_max)


def plan_transfers(offers: Sequence[Mapping[str, Sequence[Box]]], needs: Sequence[Mapping[str, Box]]) -> list[Transfer]:
    """Plan the transfers with which every rank receives the boxes that it needs, each element exactly once.

    Both arguments are by rank. A rank copies locally what it has. The rest comes from the rank with the largest
    matching part, and among equals from the one that sends the least so far. Raises `TensorsMissing`, naming the first
    part that no rank has.
    """
    sent = [0] * len(offers)
    transfers: list[Transfer] = []
    for key in sorted({key for need in needs for key in need}):
        buffer = _ChunkIndex([offer.get(key, ()) for offer in offers])
        for target, need in enumerate(needs):
            if key not in need or not need[key].numel:
                continue
            left, own = buffer.taken_from(target, need[key])
            transfers += [Transfer(target, target, key, box) for box in own]
            while left:
                wanted = left.pop()
                best = buffer.best(wanted, sent)
                if best is None:
                    raise TensorsMissing(f"no rank holds {key}{wanted}, which rank {target} needs")
                source, part = best
                sent[source] += part.numel
                transfers.append(Transfer(source, target, key, part))
                left += subtract(wanted, part)
    return transfers


class _ChunkIndex:
    """The offered boxes of one key and their ranks, indexed by the offset in the first dimension."""

    def __init__(self, by_rank: Sequence[Sequence[Box]]) -> None:
        self._by_rank = by_rank
        holders: dict[Box, list[int]] = {}
        for rank, boxes in enumerate(by_rank):
            for box in boxes:
                if box.numel and holders.setdefault(box, [])[-1:] != [rank]:
                    holders[box].append(rank)
        self._held = sorted(holders.items())
        self._starts = [box.offsets[:1] for box, _ in self._held]
        self._longest = max((box.sizes[0] for box in holders if box.sizes), default=0)

    def taken_from(self, rank: int, need: Box) -> tuple[list[Box], list[Box]]:
        """Return the rest of `need`, and the parts of it that the rank itself has."""
        left, taken = [need], []
        for box in self._by_rank[rank]:
            rest = []
            for wanted in left:
                part = overlap(wanted, box)
                if part is None:
                    rest.append(wanted)
                else:
                    taken.append(part)
                    rest += subtract(wanted, part)
            left = rest
        return left, taken

    def best(self, wanted: Box, sent: Sequence[int]) -> tuple[int, Box] | None:
        """Return the rank with the best part of `wanted`, and that part; None if no rank has any."""
        first, last = 0, len(self._held)
        if wanted.sizes:
            first = bisect_left(self._starts, (wanted.offsets[0] - self._longest,))
            last = bisect_left(self._starts, (wanted.offsets[0] + wanted.sizes[0],))
        best: tuple[tuple[int, int, int], Box] | None = None
        for box, ranks in self._held[first:last]:
            part = overlap(wanted, box)
            if part is None:
                continue
            load, rank = min((sent[rank], rank) for rank in ranks)
            candidate = ((-part.numel, load, rank), part)
            if best is None or candidate < best:
                best = candidate
        return None if best is None else (best[0][2], best[1])
