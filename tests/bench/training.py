"""The training script of the benchmarks: DDP over gloo, plain torchrun style, without our library.

    training.py STEP_LOG STEPS STEP_S [BUSY]

It makes `STEPS` steps of at least `STEP_S` seconds and appends a line to `STEP_LOG` after each. `BUSY` processes below
it compute all the while, as data loaders do.
"""

from __future__ import annotations

import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.bench.steplog import Writer


def main() -> None:
    path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    for _ in range(int(sys.argv[4]) if len(sys.argv) > 4 else 0):
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    log = Writer(path, dist.get_rank(), dist.get_world_size())
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.ones(4, 16)).square().mean().backward()
        optimizer.step()
        log.write(step)
        time.sleep(step_s)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
