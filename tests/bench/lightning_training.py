"""A script with Lightning's Trainer, as its users write it: a small network on scikit-learn's digits.

    lightning_training.py STEP_LOG STEPS STEP_S [elastic]

It makes `STEPS` steps of at least `STEP_S` seconds and appends a line to `STEP_LOG` after each. It knows nothing of the
launcher, and saves nothing: what is measured is how long it takes to come back. With `elastic` it has the Trainer of
`elastic.integrations.lightning`, which keeps each step in memory.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import lightning  # type: ignore[import-not-found, unused-ignore]
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from tests.bench.steplog import Writer


class Digits(lightning.LightningModule):  # type: ignore[misc, unused-ignore]
    """One linear layer."""

    def __init__(self, path: str, step_s: float) -> None:
        super().__init__()
        self._path, self._step_s = path, step_s
        self._log: Writer | None = None
        self._network = torch.nn.Linear(64, 10)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return torch.nn.functional.cross_entropy(self._network(images), labels)

    def on_train_batch_end(self, *_: Any) -> None:
        """Write the step, and make it last as long as it should."""
        if self._log is None:
            self._log = Writer(self._path, self.trainer.global_rank, self.trainer.world_size)
        self._log.write(self.trainer.global_step)
        time.sleep(self._step_s)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    pixels, digits = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits))
    options: dict[str, Any] = {
        "accelerator": "cpu",
        "max_steps": steps,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    if sys.argv[4:] == ["elastic"]:
        from elastic.integrations.lightning import Trainer

        trainer: Any = Trainer(**options)
    else:
        trainer = lightning.Trainer(
            devices=int(os.environ["LOCAL_WORLD_SIZE"]),
            num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
            strategy="ddp",
            **options,
        )
    trainer.fit(Digits(path, step_s), DataLoader(data, batch_size=16, shuffle=True))


if __name__ == "__main__":
    main()
