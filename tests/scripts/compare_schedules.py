"""Train a small network in float64 under a schedule of worlds, and print how far it ends from one world.

Each world is a set of fresh processes with DDP over gloo. What a checkpoint holds is carried from one to the next in a
file. Each world also takes steps that it does not save, as a job does before a loss. With "sharded" it is one world of
two with FSDP2.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import elastic
from tests.support.sample_data import digits

SCHEDULE = ((3, 7), (2, 6), (1, 5), (3, 9), (2, 100))
"""World, and the steps that it saves; the last one goes to the end."""

EPOCHS, SAMPLES, TOTAL, MOST = 2, 700, 47, 19
"""47 is not divided by 2 or 3; a world of 3 holds its shares of 16 and 15, those of 2 and 1 need several takes."""

LOST = 2


def worker(rank: int, world: int, steps: int, saved: str, meeting: str, sharded: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    train(rank, world, steps, saved, sharded)
    # DDP goes before the group. The last one to hold the group ends it; where that is DDP, it holds Python's lock while
    # it waits for gloo's thread, which may be waiting for that lock: seen with torch 2.13 on a busy machine.
    gc.collect()
    dist.destroy_process_group()


def train(rank: int, world: int, steps: int, saved: str, sharded: bool) -> None:
    torch.manual_seed(7)
    network = torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)).double()
    if sharded:
        fully_shard(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    batch = elastic.GlobalBatch(total=TOTAL, max_per_rank=MOST)
    dataset = digits(SAMPLES)
    sampler = elastic.ElasticSampler(dataset, seed=11, batch=batch)
    loader = DataLoader(dataset, batch_size=batch.size, sampler=sampler)
    parts: dict[str, Any] = {"network": network, "optimizer": optimizer, "sampler": sampler, "batch": batch}
    if Path(saved).exists():
        for name, state in torch.load(saved).items():
            parts[name].load_state_dict(state)
    model = network if sharded else DistributedDataParallel(network)
    takes, done = set(), 0
    for epoch in range(sampler.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        taken = 0
        for x, y in loader:
            taken += 1
            with batch.accumulate(model):
                torch.autograd.backward(batch.scale_loss(cross_entropy(model(x), y)))
            if not batch.is_last_micro_batch:
                continue
            optimizer.step()
            optimizer.zero_grad()
            takes.add(taken)
            taken, done = 0, done + 1
            if sharded:
                state = {name: one.full_tensor() for name, one in network.state_dict().items()}
                torch.save({"network": state, "sampler": sampler.state_dict()}, saved if rank == 0 else os.devnull)
            elif done <= steps and rank == 0:
                torch.save({name: part.state_dict() for name, part in parts.items()}, saved)
            if done == steps + LOST:
                break
        if done == steps + LOST:
            break
    if rank == 0:
        print(f"world {world} steps {min(done, steps)} takes {max(takes)}", flush=True)


def run(schedule: tuple[tuple[int, int], ...], folder: Path, sharded: bool = False) -> dict[str, Any]:
    folder.mkdir()
    for number, (world, steps) in enumerate(schedule):
        where = (str(folder / "saved.pt"), str(folder / f"meeting{number}"))
        start_processes(worker, (world, steps, *where, sharded), nprocs=world, start_method="fork")  # type: ignore[no-untyped-call]  # Not typed.
    loaded: dict[str, Any] = torch.load(folder / "saved.pt")
    return loaded


def main() -> None:
    folder = Path(sys.argv[1])
    sharded = "sharded" in sys.argv
    disturbed = run(((2, 100),) if sharded else SCHEDULE, folder / "disturbed", sharded)
    undisturbed = run(((1, 100),), folder / "undisturbed")
    assert disturbed["sampler"] == undisturbed["sampler"]
    pairs = [(disturbed["network"][name], undisturbed["network"][name]) for name in undisturbed["network"]]
    assert all(one.dtype is torch.float64 for one, _ in pairs)
    print(f"apart {max(float((one - other).abs().max()) for one, other in pairs):.1e}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # What it imports is imported once, and not in each worker.
    main()
