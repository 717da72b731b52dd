"""The part of the model on one server: pieces of dense parameters, rows of tables, and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec.structs import astuple

from elastic.errors import MessageError, ModelMismatch
from elastic.train.ps.framing import DTYPES, TensorShape
from elastic.train.ps.protocol import SGD, PieceSpec, PushRequest, RegisterRequest, TableSpec, UpdateMode
from elastic.train.ps.sparse_table import SparseTable, state_dtype


@dataclass(frozen=True, slots=True)
class PushedGradients:
    """The gradients of one push: by piece, and by table as IDs and rows."""

    weight: float
    lr: float
    pieces: Mapping[int, torch.Tensor]
    tables: Mapping[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


def average(given: Sequence[PushedGradients]) -> PushedGradients:
    """Return the weighted mean of the gradients of several workers; a missing gradient counts as zero.

    The sum has the order of the arguments, so that equal gradients give equal bits.
    """
    total = sum(push.weight for push in given)
    pieces: dict[int, torch.Tensor] = {}
    rows: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for push in given:
        share = push.weight / total
        for index, gradient in push.pieces.items():
            scaled = gradient.to(state_dtype(gradient.dtype)) * share
            pieces[index] = pieces[index] + scaled if index in pieces else scaled
        for index, (ids, gradient) in push.tables.items():
            rows.setdefault(index, []).append((ids, gradient.to(state_dtype(gradient.dtype)) * share))
    tables = {
        index: (torch.cat([ids for ids, _ in parts]), torch.cat([part for _, part in parts]))
        for index, parts in rows.items()
    }
    return PushedGradients(total, given[0].lr, pieces, tables)


class ParameterStore:
    """The part of the model on this server."""

    def __init__(self, index: int, servers: int, initial: Mapping[str, torch.Tensor] | None = None) -> None:
        """`initial` has whole parameters, which override the initial values of the workers."""
        self.pieces: tuple[PieceSpec, ...] = ()
        self.tables: list[SparseTable] = []
        self.mode: UpdateMode | None = None
        """None until a worker has registered the model at this server process."""
        self.sgd = SGD()
        self._index = index
        self._servers = servers
        self._initial = dict(initial or {})
        self._values: dict[int, torch.Tensor] = {}
        """The values of the pieces that have some, by the index of the piece."""
        self._velocity: dict[int, torch.Tensor] = {}

    def register(self, asked: RegisterRequest) -> None:
        """Register the model of the first worker, and compare that of later ones. Raises `ModelMismatch`."""
        if self.pieces or self.tables or self.mode is not None:
            self._compare(asked)
        else:
            _check_specs(asked)
            wholes = {index: self._from_file(spec.name, spec.sizes) for index, spec in enumerate(asked.pieces)}
            self.tables = [self._table(spec) for spec in asked.tables]
            self.pieces = asked.pieces
            for index, whole in wholes.items():
                if whole is not None:
                    spec = self.pieces[index]
                    self.fill((index,), (whole.reshape(-1)[spec.start : spec.stop],))
        self.mode, self.sgd = asked.mode, asked.sgd

    def missing(self) -> tuple[int, ...]:
        """Return the pieces without values."""
        if len(self._values) == len(self.pieces):
            return ()
        return tuple(index for index in range(len(self.pieces)) if index not in self._values)

    def fill(self, indexes: Sequence[int], values: Sequence[torch.Tensor]) -> None:
        """Set the initial values of pieces that have none."""
        for index, value in zip(indexes, values, strict=True):
            if index not in self._values:
                self._values[index] = value.to(state_dtype(DTYPES[self.pieces[index].dtype]), copy=True)

    def values(self) -> list[torch.Tensor]:
        """Return a copy of every piece, in registration order, with the dtype of the model."""
        return [self._values[index].to(DTYPES[spec.dtype], copy=True) for index, spec in enumerate(self.pieces)]

    def check_push(self, pushed: PushRequest) -> None:
        """Raise `MessageError` unless a push has gradients of trained pieces and of tables on this server."""
        dense = len(pushed.pieces)
        check_tensors(self.pieces, pushed.pieces, pushed.shapes[:dense])
        if still := [self.pieces[index].name for index in pushed.pieces if not self.pieces[index].trained]:
            raise MessageError(f"{still[0]} is not trained")
        rest = pushed.shapes[dense:]
        if len(set(pushed.tables)) != len(pushed.tables) or len(rest) != 2 * len(pushed.tables):
            raise MessageError("the tables of a push need ids and rows, once for each")
        for index, ids, rows in zip(pushed.tables, rest[::2], rest[1::2], strict=True):
            spec = self.table(index).spec
            if ids.dtype != "int64" or len(ids.sizes) != 1 or rows != TensorShape(spec.dtype, (*ids.sizes, spec.width)):
                raise MessageError(f"ids of {ids} and rows of {rows} do not fit {spec}")

    def gradients(self, pushed: PushRequest, tensors: Sequence[torch.Tensor]) -> PushedGradients:
        """Return the gradients of a checked push. Raises `MessageError` for IDs on other servers."""
        dense = len(pushed.pieces)
        rest = tensors[dense:]
        tables = {}
        for index, ids, rows in zip(pushed.tables, rest[::2], rest[1::2], strict=True):
            self.tables[index].check(ids)
            tables[index] = (ids, rows)
        return PushedGradients(pushed.weight, pushed.lr, dict(zip(pushed.pieces, tensors[:dense], strict=True)), tables)

    def apply(self, gradients: PushedGradients) -> None:
        """Update the values as `torch.optim.SGD` does."""
        for index, given in gradients.pieces.items():
            value = self._values[index]
            gradient = given.to(value.dtype)
            if self.sgd.weight_decay:
                gradient = gradient.add(value, alpha=self.sgd.weight_decay)
            if self.sgd.momentum:
                velocity = self._velocity.get(index)
                gradient = gradient.clone() if velocity is None else velocity.mul_(self.sgd.momentum).add_(gradient)
                self._velocity[index] = gradient
            value.add_(gradient, alpha=-gradients.lr)
        for index, (ids, rows) in gradients.tables.items():
            self.tables[index].apply(ids, rows, gradients.lr, self.sgd)

    def table(self, index: int) -> SparseTable:
        """Return a table by its index. Raises `MessageError` if there is none."""
        if index >= len(self.tables):
            raise MessageError(f"there is no table {index}")
        return self.tables[index]

    def state(self) -> dict[str, Any]:
        """Return a copy of the state that `torch.load(weights_only=True)` accepts."""
        return {
            "pieces": [astuple(spec) for spec in self.pieces],
            "values": self._copies(self._values),
            "velocity": self._copies(self._velocity),
            "tables": [(astuple(table.spec), table.state()) for table in self.tables],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state`."""
        self.pieces = tuple(PieceSpec(*spec) for spec in state["pieces"])
        self._values = {index: value for index, value in enumerate(state["values"]) if value is not None}
        self._velocity = {index: value for index, value in enumerate(state["velocity"]) if value is not None}
        self.tables = [self._table(TableSpec(*spec), kept) for spec, kept in state["tables"]]

    def _copies(self, held: Mapping[int, torch.Tensor]) -> list[torch.Tensor | None]:
        return [None if value is None else value.clone() for value in map(held.get, range(len(self.pieces)))]

    def _from_file(self, name: str, sizes: tuple[int, ...]) -> torch.Tensor | None:
        """Return a whole parameter from the file of `load_from`, None if it is not there."""
        whole = self._initial.get(name)
        if whole is not None and tuple(whole.shape) != sizes:
            raise ModelMismatch(f"{name} is {list(whole.shape)} in the file, but {list(sizes)} in the model")
        return whole

    def _table(self, spec: TableSpec, state: dict[str, torch.Tensor] | None = None) -> SparseTable:
        return SparseTable(spec, self._index, self._servers, self._from_file(spec.name, (spec.rows, spec.width)), state)

    def _compare(self, asked: RegisterRequest) -> None:
        have = [*self.pieces, *(table.spec for table in self.tables)]
        want = [*asked.pieces, *asked.tables]
        for ours, theirs in zip(have, want, strict=False):
            if ours != theirs:
                raise ModelMismatch(f"the servers have {ours}, but this worker registers {theirs}")
        if len(have) != len(want):
            raise ModelMismatch(f"the servers have {len(have)} pieces and tables here, but this worker {len(want)}")
        if self.mode is not None and (self.mode, self.sgd) != (asked.mode, asked.sgd):
            raise ModelMismatch(
                f"the servers train {self.mode} with {self.sgd}, but this worker {asked.mode} with {asked.sgd}"
            )


def check_tensors(pieces: Sequence[PieceSpec], indexes: Sequence[int], shapes: Sequence[TensorShape]) -> None:
    """Raise `MessageError` unless tensors of these shapes fit the pieces with these unique indexes."""
    if len(set(indexes)) != len(indexes) or len(shapes) != len(indexes):
        raise MessageError("each piece needs one tensor")
    for index, shape in zip(indexes, shapes, strict=True):
        if index >= len(pieces):
            raise MessageError(f"there is no piece {index}")
        if shape != pieces[index].shape:
            raise MessageError(f"{shape} does not fit {pieces[index]}")


def _check_specs(asked: RegisterRequest) -> None:
    for piece in asked.pieces:
        whole = TensorShape(piece.dtype, piece.sizes)
        if not 0 <= piece.start <= piece.stop <= whole.numbers or whole.length < 0:
            raise MessageError(f"there is no such piece: {piece}")
        if piece.trained and not DTYPES[piece.dtype].is_floating_point:
            raise MessageError(f"numbers of {piece.dtype} cannot be trained: {piece}")
    if len({(piece.name, piece.start, piece.stop) for piece in asked.pieces}) != len(asked.pieces):
        raise MessageError("a piece is registered twice")
