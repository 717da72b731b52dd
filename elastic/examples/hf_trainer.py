"""Train a small language model on Python's standard library with Hugging Face's Trainer, at any world size.

    elastic-launch --local-nodes 3 --np 1:3 -m elastic.examples.hf_trainer
    torchrun --nproc-per-node 2 -m elastic.examples.hf_trainer
    python -m elastic.examples.hf_trainer

It needs `pip install 'elastic-launch[transformers]'`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback, TrainingArguments

from elastic.integrations.transformers import ElasticTrainer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--output_dir", default="hf_trainer", help="the Trainer's checkpoint-* directories")
parser.add_argument("--epochs", type=float, default=3)
parser.add_argument("--batch", type=int, default=24, help="samples per step over all ranks")
parser.add_argument("--save_steps", type=int, default=100)
parser.add_argument("--step_time", type=float, default=0.0, help="seconds to wait after each step, to watch it")
LENGTH = 64


class Source(Dataset[dict[str, torch.Tensor]]):
    """Python's argument parser, cut into samples of `LENGTH` bytes."""

    def __init__(self) -> None:
        data = Path(argparse.__file__).read_bytes()
        whole = len(data) // LENGTH
        self.samples = torch.tensor(list(data[: whole * LENGTH])).view(whole, LENGTH)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.samples[index], "labels": self.samples[index]}


class Slower(TrainerCallback):
    """Pauses after each step."""

    def __init__(self, step_time: float) -> None:
        self.step_time = step_time

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Pause after a step."""
        time.sleep(self.step_time)


if __name__ == "__main__":
    flags = parser.parse_args()
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=LENGTH, vocab_size=256, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    arguments = TrainingArguments(
        flags.output_dir,
        num_train_epochs=flags.epochs,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        save_steps=flags.save_steps,
        save_total_limit=2,
        logging_steps=20,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to=[],
    )
    slower = [Slower(flags.step_time)]
    ElasticTrainer(model, arguments, train_dataset=Source(), callbacks=slower, global_batch=flags.batch).train()
