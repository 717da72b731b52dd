"""One server's rows of a sparse table. A row takes memory once it is changed; until then its ID determines it.

An unchanged row is computed at each read: normally distributed numbers from a hash of seed, ID and column, or the row
of the file from which the server was started. So every server, even after a restart, returns the same row, and reading
takes no memory.
"""

from __future__ import annotations

import math

import torch

from elastic.errors import MessageError
from elastic.train.ps.framing import DTYPES
from elastic.train.ps.protocol import SGD, TableSpec

_BLOCK = 1024
"""The initial capacity in rows, which doubles as needed."""


class SparseTable:
    """The rows of a table with IDs `index`, `index + servers`, `index + 2 * servers` and so on."""

    def __init__(
        self,
        spec: TableSpec,
        index: int,
        servers: int,
        base: torch.Tensor | None = None,
        state: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Start with the `state` of a snapshot, if there is one. `base` is the whole table of a file."""
        self.spec = spec
        self.dtype = state_dtype(DTYPES[spec.dtype])
        self._index = index
        self._servers = servers
        self._base = base
        self._places: dict[int, int] = {}
        self._values = torch.empty((0, spec.width), dtype=self.dtype)
        self._velocity: torch.Tensor | None = None
        if state is not None:
            self.load(state)

    def check(self, ids: torch.Tensor) -> None:
        """Raise `MessageError` for an ID that is not in the table, or on another server."""
        if bool(((ids < 0) | (ids >= self.spec.rows)).any()):
            raise MessageError(f"an id is outside of table {self.spec.name}, which has {self.spec.rows} rows")
        if bool((ids % self._servers != self._index).any()):
            raise MessageError(f"an id of table {self.spec.name} belongs to another server")

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of these IDs, in their order, with the dtype of the table."""
        places = [self._places.get(one, -1) for one in ids.tolist()]
        at = torch.tensor(places, dtype=torch.int64)
        fresh = at < 0
        found = torch.empty((len(places), self.spec.width), dtype=self.dtype)
        found[~fresh] = self._values[at[~fresh]]
        found[fresh] = self._first(ids[fresh])
        return found.to(DTYPES[self.spec.dtype])

    def apply(self, ids: torch.Tensor, gradients: torch.Tensor, lr: float, sgd: SGD) -> None:
        """Apply gradients to rows; gradients of the same ID add up.

        Momentum of a row moves only when the row has a gradient, and weight decay does not touch tables: both would
        otherwise change every row of the table at each step.
        """
        unique, total = summed_rows(ids, gradients.to(self.dtype))
        at = self._keep(unique)
        if sgd.momentum:
            if self._velocity is None:
                self._velocity = torch.zeros_like(self._values)
            total += sgd.momentum * self._velocity[at]
            self._velocity[at] = total
        self._values[at] -= lr * total

    def state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the state for a snapshot."""
        count = len(self._places)
        kept = {"ids": torch.tensor(list(self._places), dtype=torch.int64), "values": self._values[:count].clone()}
        if self._velocity is not None:
            kept["velocity"] = self._velocity[:count].clone()
        return kept

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Load the result of `state`."""
        self._places = {one: place for place, one in enumerate(state["ids"].tolist())}
        self._values = state["values"].clone()
        self._velocity = state["velocity"].clone() if "velocity" in state else None

    def _keep(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the positions of these unique IDs; new rows get a position and their initial values."""
        fresh = torch.tensor([one for one in ids.tolist() if one not in self._places], dtype=torch.int64)
        if len(fresh):
            count = len(self._places)
            self._reserve(count + len(fresh))
            self._values[count : count + len(fresh)] = self._first(fresh)
            self._places.update(zip(fresh.tolist(), range(count, count + len(fresh)), strict=True))
        return torch.tensor([self._places[one] for one in ids.tolist()], dtype=torch.int64)

    def _reserve(self, count: int) -> None:
        if count > len(self._values):
            more = max(count, 2 * len(self._values), _BLOCK) - len(self._values)
            fresh = torch.zeros((more, self.spec.width), dtype=self.dtype)
            self._values = torch.cat([self._values, fresh])
            if self._velocity is not None:
                self._velocity = torch.cat([self._velocity, fresh])

    def _first(self, ids: torch.Tensor) -> torch.Tensor:
        if self._base is not None:
            return self._base[ids].to(self.dtype)
        return first_rows(self.spec, ids).to(self.dtype)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a server computes: float32 instead of 16 bits, which would lose small changes."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def summed_rows(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the unique IDs in ascending order, and the sums of their rows."""
    unique, inverse = torch.unique(ids, return_inverse=True)
    return unique, torch.zeros((len(unique), rows.shape[1]), dtype=rows.dtype).index_add_(0, inverse, rows)


def first_rows(spec: TableSpec, ids: torch.Tensor) -> torch.Tensor:
    """Return the initial rows of a table: normally distributed with mean 0 and `spec.std`; in float64."""
    columns = torch.arange(spec.width, dtype=torch.int64)
    # Box-Muller: two uniform numbers give one normal number. int64 wraps around, as the hash requires.
    start = _signed(spec.seed * 0x632BE59BD9B4E019 % (1 << 64))
    at = (_mixed(ids + start).unsqueeze(1) + columns) * 2
    one, other = _uniform(_mixed(at)), _uniform(_mixed(at + 1))
    return spec.std * torch.sqrt(-2 * torch.log1p(-one)) * torch.cos(2 * math.pi * other)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Apply the output function of SplitMix64 (Steele, Lea and Flood 2014) to many numbers at once."""
    mixed = numbers + _signed(0x9E3779B97F4A7C15)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    return mixed ^ _shifted(mixed, 31)


def _uniform(hashed: torch.Tensor) -> torch.Tensor:
    """Convert the upper 53 bits to a number from 0 to less than 1."""
    return _shifted(hashed, 11).to(torch.float64) * 2.0**-53


def _shifted(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right as unsigned numbers."""
    return (numbers >> bits) & ((1 << (64 - bits)) - 1)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
