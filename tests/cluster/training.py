"""What the workers of the cluster tests do: train with the library until a goal, and write down each step.

    python -m tests.cluster.training FOLDER

`FOLDER/goal` holds the last step, once the test knows it. Every rank writes a diary in `FOLDER/steps`: its name begins
with its world's, and each line has a step and the time on this machine's clock, which all containers share. At the end
rank 0 writes the parameters to `FOLDER/end.pt`. The numbers are float64 and do not depend on the world.
`FOLDER/eat-<host>` makes a worker of that host use up memory.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import elastic
from tests.support.sample_data import digits

SAMPLES, TOTAL, MOST = 700, 47, 19
STEP_S = 0.04
EATEN = 4 << 30
ENDLESS = 1_000_000


def goal(folder: Path) -> int:
    """The last step, or a far one as long as nobody knows it."""
    try:
        return int((folder / "goal").read_text() or ENDLESS)
    except FileNotFoundError:
        return ENDLESS


def train(folder: Path, pause_s: float) -> None:
    """Train to the goal."""
    here = elastic.init()
    torch.manual_seed(7)
    network = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
    model = DistributedDataParallel(network) if here.world_size > 1 else network
    batch = elastic.GlobalBatch(total=TOTAL, max_per_rank=MOST)
    data = digits(SAMPLES)
    sampler = elastic.ElasticSampler(data, seed=11, batch=batch)
    loader = DataLoader(data, batch_size=batch.size, sampler=sampler)
    state = elastic.State(model=model, optimizer=optimizer, sampler=sampler, batch=batch)
    state.restore()
    hungry = folder / f"eat-{socket.gethostname()}"
    mark = os.environ.get("ELASTIC_FENCE", "alone")
    name = f"{mark.replace('/', '~')} {here.rank} {socket.gethostname()} {os.getpid()}"
    with (folder / "steps" / name).open("a", buffering=1) as diary:
        for _ in elastic.epochs(state, ENDLESS):
            for x, y in loader:
                with batch.accumulate(model):
                    torch.autograd.backward(batch.scale_loss(cross_entropy(model(x), y)))
                if not batch.is_last_micro_batch:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                diary.write(json.dumps([state.step + 1, time.monotonic()]) + "\n")
                state.commit(every=25, memory_every=1)
                if here.rank == 0 and state.step % 5 == 0:
                    place = f"world {here.world_size} generation {mark}"
                    print(f"step {state.step} {place} at {time.monotonic():.3f}", flush=True)
                if state.step >= goal(folder):
                    break
                if hungry.exists():
                    hungry.unlink()
                    bytearray(EATEN).count(1)
                time.sleep(pause_s)
            if state.step >= goal(folder):
                break
    state.finish()
    if here.rank == 0:
        torch.save({"step": state.step, "network": network.state_dict()}, folder / "end.pt")
        print(f"the end: step {state.step}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), 0.0 if "--fast" in sys.argv else STEP_S)
