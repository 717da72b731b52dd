"""Scripts that train with the library: what the tests of State and of its tiers run as replicas.

The data is in float64, the model a small network without dropout or BatchNorm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import elastic
from elastic.testing import reached, record
from tests.support.sample_data import digits as samples

SAMPLES = 500


def network(seed: int = 0) -> torch.nn.Module:
    """64 pixels in, the odds of 10 digits out."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)).double()


def ddp(epochs: int, every: int, memory_every: int = 0, most: int | None = None, workers: int = 0) -> Any:
    """Train with DDP and a fixed total batch; the parameters at the end, and all that was committed on the way."""
    here = elastic.init()
    dataset = samples(SAMPLES)
    model = network(seed=here.rank)  # DDP brings them together.
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    batch = elastic.GlobalBatch(total=70, max_per_rank=most)
    sampler = elastic.ElasticSampler(dataset, seed=3, batch=batch)
    loader = elastic.DataLoader(dataset, sampler=sampler, num_workers=workers)
    state = elastic.State(model=wrapped, optimizer=optimizer, scheduler=scheduler, sampler=sampler, seen=0)
    resumed = state.restore()
    record(["start", state.step, state.epoch, resumed])
    for epoch in elastic.epochs(state, epochs):
        for pixels, digits in loader:
            with batch.accumulate(wrapped):
                batch.scale_loss(cross_entropy(wrapped(pixels), digits)).backward()
            if batch.is_last_micro_batch:
                optimizer.step()
                optimizer.zero_grad()
                state.seen += 1
                record([epoch, state.step + 1])
                state.commit(every=every, memory_every=memory_every)
                reached(state.step)
        scheduler.step()
    return {"parameters": torch.cat([one.detach().flatten() for one in model.parameters()]), "seen": state.seen}


def fsdp(steps: int, every: int, memory_every: int = 0) -> Any:
    """Train with FSDP2 in float64; the whole parameters at the end."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    here = elastic.init()
    dataset = samples(SAMPLES)
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (here.world_size,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    batch = elastic.GlobalBatch(total=70)
    sampler = elastic.ElasticSampler(dataset, seed=3, batch=batch)
    loader = elastic.DataLoader(dataset, sampler=sampler)
    state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)
    state.restore()
    record(["start", state.step])
    for _ in elastic.epochs(state, 1000):
        for pixels, digits in loader:
            batch.scale_loss(cross_entropy(model(pixels).clone(), digits)).backward()
            optimizer.step()
            optimizer.zero_grad()
            record([0, state.step + 1])
            state.commit(every=every, memory_every=memory_every)
            reached(state.step)
            if state.step == steps:
                break
        if state.step == steps:
            break
    state.finish()
    whole = [one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()]
    return torch.cat([one.detach().flatten() for one in whole])
