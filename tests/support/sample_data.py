"""Samples to train with that need no import but torch: scikit-learn's digits cost each process a second of processor.

Pixels in [0, 1] and a number of 0..9, which a fixed linear map makes of them, so that a small network can learn it.
"""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

PIXELS, DIGITS = 64, 10


def digits(count: int) -> TensorDataset:
    """As many samples, in float64, the same ones everywhere."""
    generator = torch.Generator().manual_seed(5)
    pixels = torch.rand(count, PIXELS, dtype=torch.float64, generator=generator)
    odds = (pixels - 0.5) @ torch.randn(PIXELS, DIGITS, dtype=torch.float64, generator=generator)
    return TensorDataset(pixels, odds.argmax(1))
