"""The order of an epoch's samples: of the dataset, shuffled by seed and epoch, or one's own."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

PROBES: Final = 64
"""How many places of an order its mark looks at."""

BLOCK: Final = 1024
"""How many indices are made of a tensor at once: one by one, each costs more than a microsecond."""


def seed_of(seed: int, epoch: int) -> int:
    """The number that seeds the order of an epoch: 63 bits of a hash of both.

    A sum of seed and epoch would give two seeds the same orders, one epoch apart.
    """
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Permutation:
    """The order of one epoch at a time. It is built when it is first needed, and once: 8 bytes a sample."""

    def __init__(self, length: int, seed: int | None, own: Callable[[int], Sequence[Any]] | None) -> None:
        """`seed` None: the order of the dataset. `own(epoch)` goes before both."""
        self._length = length
        self._seed = seed
        self._own = own
        self._first, self._block, self._of = 0, list[Any](), -1
        self._marked: tuple[int, int] | None = None
        self._built: tuple[int, Sequence[Any] | torch.Tensor] | None = None

    def length(self, epoch: int) -> int:
        """How many samples the epoch has."""
        return self._length if self._own is None else len(self._order(epoch))

    def take(self, epoch: int, positions: range) -> list[Any]:
        """The indices at some neighbouring positions."""
        if self._own is None and self._seed is None:
            return list(positions)
        first = self._first
        if not first <= positions.start <= positions.stop <= first + len(self._block) or self._of != epoch:
            first = self._first = positions.start
            part = self._order(epoch)[first : max(positions.stop, first + BLOCK)]
            self._block, self._of = part.tolist() if hasattr(part, "tolist") else list(part), epoch
        return self._block[positions.start - first : positions.stop - first]

    def mark(self, epoch: int) -> int:
        """A number that another order of the same length has not, or hardly ever: a checksum of some places."""
        if self._marked is None or self._marked[0] != epoch:
            length = self.length(epoch)
            places = sorted({place * length // PROBES for place in range(PROBES)}) if length else []
            seen = [self.take(epoch, range(place, place + 1)) for place in places]
            self._marked = (epoch, zlib.crc32(repr(seen).encode()))
        return self._marked[1]

    def _order(self, epoch: int) -> Sequence[Any] | torch.Tensor:
        if self._built is None or self._built[0] != epoch:
            self._built = None  # The old one goes before the new one comes: one may be most of the memory.
            if self._own is not None:
                order: Sequence[Any] | torch.Tensor = self._own(epoch)
            else:
                assert self._seed is not None
                order = torch.randperm(
                    self._length, generator=torch.Generator().manual_seed(seed_of(self._seed, epoch)), device="cpu"
                )
            self._built = (epoch, order)
        return self._built[1]
