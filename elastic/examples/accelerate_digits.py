"""Train a small network on scikit-learn's digits with Hugging Face Accelerate; the world size may change at any time.

Runs unchanged under elastic-launch, torchrun and plain python (`pip install '.[accelerate,examples]'`):

    elastic-launch --local-nodes 3 --np 1:3 -m elastic.examples.accelerate_digits
    torchrun --nproc-per-node 2 -m elastic.examples.accelerate_digits
    python -m elastic.examples.accelerate_digits
"""

from __future__ import annotations

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

from elastic.integrations.accelerate import ElasticAccelerator

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch", type=int, default=16, help="samples that a process takes at once")
parser.add_argument("--accumulate", type=int, default=2, help="batches per step of a process, in the first generation")
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--checkpoint_every", type=int, default=50, help="steps")
parser.add_argument("--step_time", type=float, default=0.0, help="minimum seconds per batch, to watch it")
args = parser.parse_args()

pixels, digits = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
test, train = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tensor_split([360])
loader = DataLoader(Subset(dataset, train.tolist()), batch_size=args.batch, shuffle=True)
test_loader = DataLoader(Subset(dataset, test.tolist()), batch_size=64)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader) * args.epochs // args.accumulate)

accelerator = ElasticAccelerator(gradient_accumulation_steps=args.accumulate, checkpoint_every=args.checkpoint_every)
model, optimizer, loader, test_loader, scheduler = accelerator.prepare(model, optimizer, loader, test_loader, scheduler)
for epoch in accelerator.epochs(args.epochs):
    model.train()
    for images, labels in loader:
        started = time.monotonic()
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(images), labels))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        time.sleep(max(0.0, started + args.step_time - time.monotonic()))
    model.eval()
    right = torch.zeros(0, dtype=torch.bool, device=accelerator.device)
    for images, labels in test_loader:
        with torch.no_grad():
            guesses = model(images).argmax(1)
        right = torch.cat([right, accelerator.gather_for_metrics(guesses == labels)])
    accelerator.print(
        f"epoch {epoch}  test accuracy {100 * right.float().mean():.1f} % of {len(right)}  "
        f"step {accelerator.elastic.step}  world {accelerator.num_processes}",
        flush=True,
    )
accelerator.end_training()
