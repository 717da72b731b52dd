"""A module for a table whose rows are on the parameter servers."""

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
    """`torch.nn.Embedding` with its rows on the servers: a worker fetches only the rows of its batch.

    The initial value of row `i` depends only on `seed` and `i`, and a row takes memory on its server only once it is
    trained. So a table may be much larger than the memory of one machine, until it is saved: `Worker.save` writes the
    whole table. After `load_state_dict` of such a file, without a `Worker`, the module looks up the rows of the file.

    Attributes:
        num: The number of rows.
        dim: The number of columns.
        seed: The seed of the initial values.
        std: The standard deviation of the initial values.
        dtype: The dtype of the rows.
    """

    def __init__(
        self, num: int, dim: int, *, seed: int = 0, std: float = 1.0, dtype: torch.dtype | None = None
    ) -> None:
        """Describe the table; it has rows once a `Worker` is created with the model.

        Args:
            num: The number of rows, 1 or more. IDs count from 0.
            dim: The number of columns, 1 or more.
            seed: The seed of the initial values; tables with the same seed have the same initial rows.
            std: The standard deviation of the initial values, which are normally distributed with mean 0.
            dtype: The floating-point dtype of the rows, by default that of torch.

        Raises:
            ConfigError: `num` or `dim` is less than 1.
        """
        super().__init__()
        if num < 1 or dim < 1:
            raise ConfigError(f"num is {num} and dim is {dim}; an embedding needs at least one row and one column")
        self.num = num
        self.dim = dim
        self.seed = seed
        self.std = std
        self.dtype = dtype or torch.get_default_dtype()
        self.fetch: Callable[[torch.Tensor], torch.Tensor] | None = None
        """Fetches rows from the servers; the `Worker` sets it."""
        self._table: torch.Tensor | None = None
        self._gathered: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Look up rows, and record their gradients for the next push.

        Args:
            ids: Integers of any shape, from 0 to `num` - 1.

        Returns:
            The rows, of shape `(*ids.shape, dim)`, on the device of `ids`.

        Raises:
            ConfigError: There is no `Worker` with this module, and no loaded table.
            IndexError: An ID is not in the table.
            ServerLost: A server did not reply within the timeout of the `Worker`, which fetches the rows.
        """
        if self.fetch is None:
            if self._table is None:
                raise ConfigError("this ps.Embedding has no rows yet; create a ps.Worker with the model first")
            return embedding(ids.to(self._table.device), self._table).to(ids.device)
        unique, inverse = torch.unique(ids.detach().reshape(-1).to("cpu", torch.int64), return_inverse=True)
        if len(unique) and not 0 <= int(unique[0]) <= int(unique[-1]) < self.num:
            raise IndexError(f"ids are {int(unique[0])} to {int(unique[-1])}; the table has 0 to {self.num - 1}")
        rows = self.fetch(unique).to(ids.device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._gathered.append((unique, gradient.detach()))
            )
        return embedding(inverse.view(ids.shape).to(ids.device), rows)

    def spec(self, name: str) -> TableSpec:
        """Return the description of the table for the servers.

        Args:
            name: The name of its parameter in the model.
        """
        return TableSpec(name, self.num, self.dim, NAMES[self.dtype], self.seed, self.std)

    def first(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute the initial values of rows, without a server.

        Args:
            ids: IDs as int64, of shape `(n,)`.

        Returns:
            The rows before training, of shape `(len(ids), dim)`, on the CPU.
        """
        return first_rows(self.spec("rows"), ids).to(self.dtype)

    def gathered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Take the gradients of all backward passes since the last call; the `Worker` pushes them.

        Returns:
            The unique IDs in ascending order, and the sums of their gradients, of shape `(len(ids), dim)`; on the CPU.
        """
        nothing = torch.empty(0, dtype=torch.int64), torch.empty((0, self.dim), dtype=self.dtype)
        parts, self._gathered = [nothing, *self._gathered], []
        rows = torch.cat([gradient.to("cpu", self.dtype) for _, gradient in parts])
        return summed_rows(torch.cat([ids for ids, _ in parts]), rows)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if (table := state_dict.get(f"{prefix}weight")) is not None:
            if tuple(table.shape) != (self.num, self.dim):
                raise ConfigError(f"{prefix}weight is {list(table.shape)}, but {[self.num, self.dim]} in the model")
            self._table = table.to(self.dtype)
            state_dict = {name: value for name, value in state_dict.items() if name != f"{prefix}weight"}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
