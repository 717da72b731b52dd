"""A model's dense parameters as a worker sees them: cut into pieces for the servers, and joined again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from elastic.errors import ConfigError
from elastic.train.ps.framing import NAMES, TensorShape
from elastic.train.ps.parameter_placement import place_parameters
from elastic.train.ps.protocol import PieceSpec


class DenseParameters:
    """The parameters of a model, and which server has which piece of them."""

    def __init__(self, model: torch.nn.Module, servers: int) -> None:
        """Cut them. `ConfigError` for a dtype that is not sent."""
        self._parameters = dict(model.named_parameters())
        self._copying = threading.Lock()
        for name, value in self._parameters.items():
            if value.dtype not in NAMES:
                raise ConfigError(f"{name} is of {value.dtype}; parameter servers hold {', '.join(NAMES.values())}")
        wholes = [
            PieceSpec(name, tuple(value.shape), NAMES[value.dtype], 0, value.numel(), value.requires_grad)
            for name, value in self._parameters.items()
        ]
        self.specs = place_parameters(wholes, servers)
        """The pieces of each server."""

    def shapes(self, server: int) -> tuple[TensorShape, ...]:
        """What a server sends when it sends all its pieces."""
        return tuple(spec.shape for spec in self.specs[server])

    def values(self, server: int, wanted: Sequence[int]) -> list[torch.Tensor]:
        """This worker's own values of some pieces of a server. May be called from another thread."""
        with self._copying:
            return [_cut(self.specs[server][index], self._parameters) for index in wanted]

    def gradients(self, server: int) -> tuple[list[int], list[torch.Tensor]]:
        """The pieces of a server that have a gradient, by their place, and the gradients."""
        gradients = {
            name: value.grad.to_dense() if value.grad.is_sparse else value.grad
            for name, value in self._parameters.items()
            if value.grad is not None
        }
        indexes = [index for index, piece in enumerate(self.specs[server]) if piece.name in gradients]
        return indexes, [_cut(self.specs[server][index], gradients) for index in indexes]

    def clear(self) -> None:
        """Forget the gradients: they have gone to the servers."""
        for value in self._parameters.values():
            value.grad = None

    def take(self, pulled: Sequence[Sequence[torch.Tensor]]) -> None:
        """Put what all servers sent into the model."""
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
