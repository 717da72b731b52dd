"""A table of rows that live on the servers, as a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import embedding

from elastic.errors import ConfigError
from elastic.train.ps.framing import NAMES
from elastic.train.ps.protocol import TableSpec
from elastic.train.ps.sparse_table import first_rows, summed_rows


class Embedding(torch.nn.Module):
    """`torch.nn.Embedding` with its rows on the servers: only the rows that a batch needs come to the worker.

    The first value of row `i` follows from `seed` and `i` alone, and a row costs memory on its server only once it was
    trained. So a table may be much larger than the memory of one machine, until it is saved: `Worker.save` writes one
    whole table. After `load_state_dict` of such a file, and without a `Worker`, the module looks up the rows of the
    file.

    Attributes:
        num: The number of rows.
        dim: The number of columns.
        seed: Of the first values.
        std: The standard deviation of the first values.
        dtype: Of the rows.
    """

    def __init__(
        self, num: int, dim: int, *, seed: int = 0, std: float = 1.0, dtype: torch.dtype | None = None
    ) -> None:
        """Describe the table; it has rows once a `Worker` has the model.

        Args:
            num: The number of rows, at least 1. Ids count from 0.
            dim: The number of columns, at least 1.
            seed: Of the first values; tables with one seed begin with the same rows.
            std: The standard deviation of the first values, which are normal with mean 0.
            dtype: Of the rows: a floating-point one, by default torch's.

        Raises:
            ConfigError: There is no row or no column.
        """
        super().__init__()
        if num < 1 or dim < 1:
            raise ConfigError(f"an embedding has at least one row and one column, not {num} and {dim}")
        self.num = num
        self.dim = dim
        self.seed = seed
        self.std = std
        self.dtype = dtype or torch.get_default_dtype()
        self.fetch: Callable[[torch.Tensor], torch.Tensor] | None = None
        """Gets rows from the servers; the `Worker` sets it."""
        self._table: torch.Tensor | None = None
        self._gathered: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up rows, and remember their gradients for the next push.

        Args:
            ids: Integers of any shape, from 0 to `num` - 1.

        Returns:
            The rows, of shape `(*ids.shape, dim)`, on the device of `ids`.

        Raises:
            ConfigError: There is neither a `Worker` with this module nor a loaded table.
            IndexError: An id is not in the table.
            ServerLost: As for the methods of `Worker`, which fetches the rows.
        """
        if self.fetch is None:
            if self._table is None:
                raise ConfigError("this ps.Embedding has no rows yet; make a ps.Worker with the model first")
            return embedding(ids.to(self._table.device), self._table).to(ids.device)
        unique, inverse = torch.unique(ids.detach().reshape(-1).to("cpu", torch.int64), return_inverse=True)
        if len(unique) and not 0 <= int(unique[0]) <= int(unique[-1]) < self.num:
            raise IndexError(f"ids are from 0 to {self.num - 1}, not {int(unique[0])} to {int(unique[-1])}")
        rows = self.fetch(unique).to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._gathered.append((unique, gradient.detach()))
            )
        return embedding(inverse.view(ids.shape).to(ids.device), rows)

    def spec(self, name: str) -> TableSpec:
        """Describe the table as servers know it, under the name of its parameter in the model."""
        return TableSpec(name, self.num, self.dim, NAMES[self.dtype], self.seed, self.std)

    def first(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute the first values of rows, without asking a server.

        Args:
            ids: A list of int64 ids.

        Returns:
            The rows as they are before they are trained, of shape `(len(ids), dim)`, on the CPU.
        """
        return first_rows(self.spec("rows"), ids).to(self.dtype)

    def gathered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the gradients of all backward passes since the last call; the `Worker` pushes them.

        Returns:
            The ids, ascending and each once, and the sums of their gradients, of shape `(len(ids), dim)`; on the CPU.
        """
        nothing = torch.empty(0, dtype=torch.int64), torch.empty((0, self.dim), dtype=self.dtype)
        parts, self._gathered = [nothing, *self._gathered], []
        rows = torch.cat([gradient.to("cpu", self.dtype) for _, gradient in parts])
        return summed_rows(torch.cat([ids for ids, _ in parts]), rows)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if (table := state_dict.get(f"{prefix}weight")) is not None:
            if tuple(table.shape) != (self.num, self.dim):
                raise ConfigError(f"{prefix}weight is {list(table.shape)}, and {[self.num, self.dim]} in the model")
            self._table = table.to(self.dtype)
            state_dict = {name: value for name, value in state_dict.items() if name != f"{prefix}weight"}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
