"""A script with Accelerate, as its users write it: a small network on scikit-learn's digits.

    accelerate_training.py STEP_LOG STEPS STEP_S [elastic]

It makes `STEPS` steps of at least `STEP_S` seconds and appends a line to `STEP_LOG` after each. It knows nothing of the
launcher, and saves nothing: what is measured is how long it takes to come back. With `elastic` it has the Accelerator
of `elastic.integrations.accelerate`, which keeps each step in memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from tests.bench.steplog import Writer


def _accelerator(elastic: bool) -> tuple[Any, Callable[[int], Iterable[int]]]:
    """The Accelerator, and what loops over the epochs."""
    if not elastic:
        return Accelerator(cpu=True), range
    from elastic.integrations.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(cpu=True)
    return accelerator, accelerator.epochs


def main() -> None:
    path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    pixels, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
    accelerator, epochs = _accelerator(sys.argv[4:] == ["elastic"])
    network: Any = torch.nn.Linear(64, 10)
    made: Any = (network, torch.optim.SGD(network.parameters(), lr=0.01), DataLoader(data, 16, shuffle=True))
    model, optimizer, loader = accelerator.prepare(*made)
    log = Writer(path, accelerator.process_index, accelerator.num_processes)
    step = 0
    for _ in epochs(steps):
        for images, labels in loader:
            accelerator.backward(cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            log.write(step)
            time.sleep(step_s)


if __name__ == "__main__":
    main()
