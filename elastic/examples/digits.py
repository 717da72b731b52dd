"""Train a small network on scikit-learn's digits with DDP; the world size may change at any time.

Runs unchanged under elastic-launch, torchrun and plain python:

    elastic-launch --local-nodes 3 --np 1:3 -m elastic.examples.digits
    torchrun --nproc-per-node 2 -m elastic.examples.digits
    python -m elastic.examples.digits
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import elastic

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--steps", type=int, default=None, help="stop after this number of steps instead of --epochs")
parser.add_argument("--batch", type=int, default=64, help="samples per step over all ranks")
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--checkpoint_every", type=int, default=50, help="steps")
parser.add_argument("--memory_every", type=int, default=1, help="steps; 0 keeps nothing in memory")
parser.add_argument("--print_every", type=int, default=50, help="steps")
parser.add_argument("--step_time", type=float, default=0.0, help="minimum seconds per step, to watch it")
parser.add_argument("--step_log", default=os.environ.get("ELASTIC_STEP_LOG"), help="file that gets one line per step")
args = parser.parse_args()

here = elastic.init()
pixels, digits = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32, device=here.device), torch.tensor(digits, device=here.device)
test, train = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).tensor_split([360])

torch.manual_seed(args.seed)
network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)).to(here.device)
model = DistributedDataParallel(network)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
batch = elastic.GlobalBatch(total=args.batch)
sampler = elastic.ElasticSampler(len(train), seed=args.seed, batch=batch)
loader = elastic.DataLoader(TensorDataset(x[train], y[train]), sampler=sampler)
state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)
state.restore()

for _ in elastic.epochs(state, args.epochs if args.steps is None else args.steps):
    for images, labels in loader:
        if state.step == args.steps:
            break
        started = time.monotonic()
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        batch.scale_loss(loss).backward()
        optimizer.step()
        time.sleep(max(0.0, started + args.step_time - time.monotonic()))
        step = state.step + 1
        if args.step_log:
            with open(args.step_log, "a") as file:
                place = f"generation={here.generation} rank={here.rank} world={here.world_size}"
                file.write(f"{time.time():.3f} {place} step={step} pid={os.getpid()}\n")
        if here.rank == 0 and (step % args.print_every == 0 or step == args.steps):
            print(f"step {step}  loss {loss.item():.4f}  world {here.world_size}", flush=True)
        state.commit(every=args.checkpoint_every, memory_every=args.memory_every, loss=loss, total=args.steps)

if here.rank == 0:
    with torch.no_grad():
        right = (network(x[test]).argmax(1) == y[test]).float().mean().item()
    print(f"test accuracy {100 * right:.1f} % after {state.step} steps", flush=True)
