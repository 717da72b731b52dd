"""The training script of the benchmarks: DDP over gloo, plain torchrun style, without our library.

The script of torchft (torchft_training.py) makes the same steps: both take them from here.

    training.py STEP_LOG STEPS PAUSE_S [BUSY [COMPUTES_S]]

It makes `STEPS` steps and appends a line to `STEP_LOG` after each. `PAUSE_S` pass between two steps, `COMPUTES_S` (0)
within a step, before `backward`. `BUSY` processes below
it compute all the while, as data loaders do.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.bench.steplog import Writer


class Optimizer(Protocol):
    """Torch's optimizer, or torchft's around it."""

    def zero_grad(self) -> None: ...
    def step(self) -> None: ...


def network() -> torch.nn.Module:
    """The model that is trained."""
    return torch.nn.Linear(16, 16)


def steps(
    model: torch.nn.Module,
    optimizer: Optimizer,
    *,
    pause_s: float,
    computes_s: float = 0.0,
    average: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Train for ever, and yield after each step.

    `pause_s` pass between two steps, `computes_s` within a step. `average` averages the gradients where `backward` does
    not.
    """
    while True:
        optimizer.zero_grad()
        time.sleep(computes_s)
        model(torch.ones(4, 16)).square().mean().backward()
        average()
        optimizer.step()
        yield
        time.sleep(pause_s)


def main() -> None:
    path, count, pause_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    busy, computes_s = [*map(float, sys.argv[4:6]), 0.0, 0.0][:2]
    for _ in range(int(busy)):
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    log = Writer(path, dist.get_rank(), dist.get_world_size())
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trained = steps(model, optimizer, pause_s=pause_s, computes_s=computes_s)
    for step, _ in zip(range(1, count + 1), trained, strict=False):
        log.write(step)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
