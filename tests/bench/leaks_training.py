"""The training script of the bench of leaks: our library, gloo, as little work as there can be, memory and disk tier.

    leaks_training.py STEP_LOG STEP_S

It makes steps for ever. SIGUSR1 makes it fail by itself, with exit code 3.
"""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType

import torch
import torch.distributed as dist

import elastic
from tests.bench.steplog import Writer

FAILED = 3


def fail(number: int, frame: FrameType | None) -> None:
    """End as a script that found something wrong."""
    sys.exit(FAILED)


def main() -> None:
    path, step_s = sys.argv[1], float(sys.argv[2])
    signal.signal(signal.SIGUSR1, fail)
    torch.set_num_threads(1)
    elastic.init()
    steps = Writer(path, dist.get_rank(), dist.get_world_size())
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    state = elastic.State(model=model, optimizer=optimizer)
    state.restore()
    while True:
        optimizer.zero_grad()
        model(torch.ones(4, 16)).square().mean().backward()
        dist.all_reduce(torch.ones(16))
        optimizer.step()
        steps.write(state.step + 1)
        state.commit(every=100, memory_every=1)
        time.sleep(step_s)


if __name__ == "__main__":
    main()
