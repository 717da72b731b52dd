"""The order of an epoch's samples: that of the dataset, shuffled by seed and epoch, or custom."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

PROBES: Final = 64
"""The number of positions of an order that its checksum covers."""

BLOCK: Final = 1024
"""The number of indices converted from a tensor at once; one by one, each takes more than a microsecond."""


def seed_of(seed: int, epoch: int) -> int:
    """Return the seed of the order of an epoch: 63 bits of a hash of both.

    With a sum of seed and epoch, two seeds would have the same orders, one epoch apart.
    """
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Permutation:
    """The order of one epoch at a time, built once at its first use: 8 bytes per sample."""

    def __init__(self, length: int, seed: int | None, own: Callable[[int], Sequence[Any]] | None) -> None:
        """`seed` None: the order of the dataset. `own(epoch)`, if given, overrides both."""
        self._length = length
        self._seed = seed
        self._own = own
        self._first, self._block, self._of = 0, list[Any](), -1
        self._marked: tuple[int, int] | None = None
        self._built: tuple[int, Sequence[Any] | torch.Tensor] | None = None

    def length(self, epoch: int) -> int:
        """Return the number of samples of the epoch."""
        return self._length if self._own is None else len(self._order(epoch))

    def take(self, epoch: int, positions: range) -> list[Any]:
        """Return the indices at a range of positions."""
        if self._own is None and self._seed is None:
            return list(positions)
        first = self._first
        if not first <= positions.start <= positions.stop <= first + len(self._block) or self._of != epoch:
            first = self._first = positions.start
            part = self._order(epoch)[first : max(positions.stop, first + BLOCK)]
            self._block, self._of = part.tolist() if hasattr(part, "tolist") else list(part), epoch
        return self._block[positions.start - first : positions.stop - first]

    def mark(self, epoch: int) -> int:
        """Return a checksum of `PROBES` positions, which almost never equals that of another order of this length."""
        if self._marked is None or self._marked[0] != epoch:
            length = self.length(epoch)
            places = sorted({place * length // PROBES for place in range(PROBES)}) if length else []
            seen = [self.take(epoch, range(place, place + 1)) for place in places]
            self._marked = (epoch, zlib.crc32(repr(seen).encode()))
        return self._marked[1]

    def _order(self, epoch: int) -> Sequence[Any] | torch.Tensor:
        if self._built is None or self._built[0] != epoch:
            self._built = None  # Free the old order first: one order may take most of the memory.
            if self._own is not None:
                order: Sequence[Any] | torch.Tensor = self._own(epoch)
            else:
                assert self._seed is not None
                order = torch.randperm(
                    self._length, generator=torch.Generator().manual_seed(seed_of(self._seed, epoch)), device="cpu"
                )
            self._built = (epoch, order)
        return self._built[1]
