"""Train a small network on scikit-learn's digits with Lightning; the world size may change at any time.

Runs unchanged under elastic-launch, torchrun and plain python:

    elastic-launch --local-nodes 3 --np 1:3 -m elastic.examples.lightning_digits
    torchrun --nproc-per-node 2 -m elastic.examples.lightning_digits
    python -m elastic.examples.lightning_digits
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from elastic.integrations.lightning import Trainer


class Digits(lightning.LightningModule):
    """Two linear layers."""

    def __init__(self, step_time: float) -> None:
        super().__init__()
        self.step_time = step_time
        self.network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        time.sleep(self.step_time)
        return cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, _: int) -> None:
        """Log the share of images that are classified correctly."""
        images, labels = batch
        self.log("accuracy", (self.network(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the Adam optimizer."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    """Train, and print the accuracy on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples per step over all ranks")
    parser.add_argument("--step_time", type=float, default=0.0, help="minimum seconds per step, to watch it")
    args = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    test, train = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).tensor_split([360])
    trainer = Trainer(
        max_epochs=args.epochs,
        global_batch=args.batch,
        callbacks=[ModelCheckpoint(monitor="accuracy", mode="max")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=args.batch, shuffle=True)
    trainer.fit(Digits(args.step_time), loader, DataLoader(TensorDataset(x[test], y[test]), batch_size=360))
    if trainer.is_global_zero:
        print(f"test accuracy {100 * trainer.callback_metrics['accuracy']:.1f} % after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
