"""A model and its optimizer, of any size: what the benchmarks keep and restore. It imports torch and nothing else."""

from __future__ import annotations

import torch
from torch import nn

BLOCKS = 12
BYTES_OF_A_PARAMETER = 12
"""float32: itself, and two moments of Adam."""
LARGE_MB = 10.0
"""From here on it costs more to draw the first parameters than to do without."""


class Training:
    """A model like a transformer's MLPs, with Adam: about `size_mb` of state in some 290 tensors."""

    def __init__(self, size_mb: float) -> None:
        width = max(2, int((size_mb * 1e6 / BYTES_OF_A_PARAMETER / BLOCKS / 8) ** 0.5))
        with torch.device("meta" if size_mb >= LARGE_MB else "cpu"):
            blocks = [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width))
                for _ in range(BLOCKS)
            ]
            self.model = nn.Sequential(*blocks)
        self.model.to_empty(device="cpu")
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(0.5)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        """One step of the optimizer; the gradients are always the same."""
        for parameter in self.model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.full_like(parameter, 0.1)
        self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        """All that is to be kept."""
        moments = [one for state in self.optimizer.state.values() for one in state.values()]
        return [*(parameter.detach() for parameter in self.model.parameters()), *moments]

    def place(self) -> list[float]:
        """A few numbers that are others after each step."""
        return [float(tensor.flatten()[-1]) for tensor in self.tensors()]
