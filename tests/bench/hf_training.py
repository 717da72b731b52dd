"""A script with Hugging Face's Trainer, as its users write it: a small language model on Python's own library as text.

    hf_training.py STEP_LOG STEPS STEP_S [elastic]

It makes `STEPS` steps of at least `STEP_S` seconds and appends a line to `STEP_LOG` after each. It knows nothing of the
launcher, and saves nothing: what is measured is how long it takes to come back. With `elastic` it is an ElasticTrainer,
which keeps each step in memory.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (  # type: ignore[import-not-found, unused-ignore]
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.bench.steplog import Writer

LENGTH = 64
"""Bytes in one sample."""


class Text(Dataset[dict[str, torch.Tensor]]):
    """The source of Python's argument parser, cut into samples."""

    def __init__(self) -> None:
        data = Path(argparse.__file__).read_bytes()
        whole = len(data) // LENGTH
        self._samples = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8).long()[: whole * LENGTH].view(whole, LENGTH)
        )

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._samples[index], "labels": self._samples[index]}


class StepLog(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Writes each step, and makes it last as long as it should."""

    def __init__(self, path: str, step_s: float) -> None:
        self._path, self._step_s = path, step_s
        self._log: Writer | None = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is done."""
        if self._log is None:
            self._log = Writer(self._path, args.process_index, args.world_size)
        self._log.write(state.global_step)
        time.sleep(self._step_s)


def main() -> None:
    path, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    torch.set_num_threads(1)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=32, n_positions=LENGTH, vocab_size=256))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            per_device_train_batch_size=4,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        made: Any = Trainer
        if sys.argv[4:] == ["elastic"]:
            from elastic.integrations.transformers import ElasticTrainer

            made = ElasticTrainer
        made(model=model, args=arguments, train_dataset=Text(), callbacks=[StepLog(path, step_s)]).train()


if __name__ == "__main__":
    main()
