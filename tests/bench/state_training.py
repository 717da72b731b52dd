"""The training script of the recovery of a job with state: our library, gloo, and no data.

    state_training.py STEP_LOG SIZE_MB STEP_S EVERY MEMORY_EVERY

It makes steps of at least `STEP_S` seconds for ever, and appends a line to `STEP_LOG` after each, before its commit:
the commit of a planned stop saves the step and does not return. To `STEP_LOG.restored` it appends the seconds that the
restore took. `MEMORY_EVERY` 0: the disk tier alone.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import elastic
from tests.bench.model import Training
from tests.bench.steplog import Writer


def main() -> None:
    path, size_mb, step_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    every, memory_every = int(sys.argv[4]), int(sys.argv[5]) or None
    torch.set_num_threads(1)
    elastic.init()
    rank = dist.get_rank()
    steps = Writer(path, rank, dist.get_world_size())
    generation = os.environ.get("ELASTIC_GENERATION", "0")
    training = Training(size_mb)
    state = elastic.State(model=training.model, optimizer=training.optimizer)
    began_s = time.time()
    state.restore()
    with open(f"{path}.restored", "a") as log:
        log.write(f"{generation} {rank} {time.time() - began_s:.4f}\n")
    while True:
        training.step()
        dist.all_reduce(torch.ones(16))
        steps.write(state.step + 1)
        state.commit(every=every, memory_every=memory_every)
        time.sleep(step_s)


if __name__ == "__main__":
    main()
