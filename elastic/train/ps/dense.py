"""The dense parameters of a model on a worker: split into pieces for the servers, and joined again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from elastic.errors import ConfigError
from elastic.train.ps.framing import NAMES, TensorShape
from elastic.train.ps.parameter_placement import place_parameters
from elastic.train.ps.protocol import PieceSpec


class DenseParameters:
    """The parameters of a model, and the server of each piece."""

    def __init__(self, model: torch.nn.Module, servers: int) -> None:
        """Split the parameters. Raises `ConfigError` for an unsupported dtype."""
        self._parameters = dict(model.named_parameters())
        self._copying = threading.Lock()
        for name, value in self._parameters.items():
            if value.dtype not in NAMES:
                raise ConfigError(f"{name} has {value.dtype}; parameter servers support {', '.join(NAMES.values())}")
        wholes = [
            PieceSpec(name, tuple(value.shape), NAMES[value.dtype], 0, value.numel(), value.requires_grad)
            for name, value in self._parameters.items()
        ]
        self.specs = place_parameters(wholes, servers)
        """The pieces of each server."""

    def shapes(self, server: int) -> tuple[TensorShape, ...]:
        """Return the shapes of all pieces of a server."""
        return tuple(spec.shape for spec in self.specs[server])

    def values(self, server: int, wanted: Sequence[int]) -> list[torch.Tensor]:
        """Return the values of this worker for some pieces of a server. Thread-safe."""
        with self._copying:
            return [_cut(self.specs[server][index], self._parameters) for index in wanted]

    def gradients(self, server: int) -> tuple[list[int], list[torch.Tensor]]:
        """Return the indexes of the pieces of a server that have gradients, and the gradients."""
        gradients = {
            name: value.grad.to_dense() if value.grad.is_sparse else value.grad
            for name, value in self._parameters.items()
            if value.grad is not None
        }
        indexes = [index for index, piece in enumerate(self.specs[server]) if piece.name in gradients]
        return indexes, [_cut(self.specs[server][index], gradients) for index in indexes]

    def clear(self) -> None:
        """Clear the gradients after a push."""
        for value in self._parameters.values():
            value.grad = None

    def take(self, pulled: Sequence[Sequence[torch.Tensor]]) -> None:
        """Copy the values from all servers to the model."""
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in self._parameters}
        for pieces, values in zip(self.specs, pulled, strict=True):
            for piece, value in zip(pieces, values, strict=True):
                parts[piece.name].append(value)
        with self._copying, torch.no_grad():
            for name, parameter in self._parameters.items():
                whole = torch.cat(parts[name]) if len(parts[name]) > 1 else parts[name][0]
                parameter.copy_(whole.view(parameter.shape))


def _cut(piece: PieceSpec, wholes: dict[str, torch.Tensor] | dict[str, torch.nn.Parameter]) -> torch.Tensor:
    return wholes[piece.name].detach().reshape(-1)[piece.start : piece.stop].cpu()
