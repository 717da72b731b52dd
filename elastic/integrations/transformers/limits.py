"""Refuses settings of a `Trainer` that cannot be exact at another world size; each error says what to use instead."""

from __future__ import annotations

import os
from collections.abc import Sized
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler, SequentialSampler

from elastic import environment
from elastic.errors import ConfigError
from elastic.train import report


def require_exact(trainer: Any, trial: Any) -> None:
    """Raise `ConfigError` for the first setting of `trainer` that cannot be exact."""
    args, dataset = trainer.args, trainer.train_dataset
    accelerator = args.accelerator_config
    distributed = str(trainer.accelerator.distributed_type).rpartition(".")[2]
    workers = environment.read(os.environ).world_size
    problems = (
        (
            workers != args.world_size,
            f"this is one of {workers} workers, but the Trainer would train alone, because it finds no GPU; set "
            "use_cpu=True in TrainingArguments to train on the CPU",
        ),
        (trial is not None, "a hyperparameter search runs many trainings; start a job for each"),
        (
            isinstance(dataset, IterableDataset) or (dataset is not None and not isinstance(dataset, Sized)),
            "train_dataset is iterable and has no position to resume from; use a dataset with __len__ and __getitem__",
        ),
        (
            distributed in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "TP", "XLA"),
            f"the state of {distributed} cannot be restored at another world size; use DDP, or a custom loop with "
            "torch.distributed.fsdp.fully_shard and elastic.State",
        ),
        (
            args.save_on_each_node,
            "with save_on_each_node all nodes would write the same checkpoint to a shared directory; leave it out",
        ),
        (args.auto_find_batch_size, "auto_find_batch_size changes the batches during training; leave it out"),
        (
            args.ignore_data_skip,
            "ignore_data_skip starts an epoch from its beginning; leave it out: finished samples are skipped anyway",
        ),
        (
            getattr(args, "dataloader_in_order", True) is False,  # Missing in releases before 5.15.
            "dataloader_in_order=False returns batches in no fixed order; leave it out",
        ),
        (
            args.train_sampling_strategy not in ("random", "sequential"),
            f"train_sampling_strategy={args.train_sampling_strategy!r} makes the order depend on the world size; leave "
            "it out, and pass a custom order: ElasticTrainer(order=...)",
        ),
        (
            accelerator.split_batches or accelerator.dispatch_batches,
            "split_batches and dispatch_batches of accelerator_config split batches by the world size; leave them out",
        ),
        (
            getattr(trainer, "loss_is_scaled_for_ga", None) is True,  # Missing in releases before 5.19.
            "with loss_is_scaled_for_ga=True the loss depends on the number of batches in a step; return the mean over "
            "the batch, and set loss_is_scaled_for_ga=False",
        ),
    )
    for wrong, text in problems:
        if wrong:
            raise ConfigError(f"ElasticTrainer: {text}")


def require_whole_epoch(control: Any, run: Any) -> None:
    """Raise `ConfigError` if a callback ended an epoch before its last sample, and training continues."""
    state = run.trainer.state
    left = state.global_step % run.batches.steps
    if control.should_epoch_stop and left and not control.should_training_stop:
        raise ConfigError(
            f"ElasticTrainer: a callback ended an epoch after {left} of {run.batches.steps} steps "
            "(should_epoch_stop), so the position in the data is no longer known; end the training instead "
            "(should_training_stop), or leave samples out with order="
        )


def sampling(loader: Any, *, own_order: bool) -> tuple[int, bool]:
    """Return the batch size of a loader of the Trainer, and whether it shuffles.

    Raises `ConfigError` if its sampler is not one of the Trainer's own.
    """
    batches = loader.batch_sampler
    while hasattr(batches, "batch_sampler"):
        batches = batches.batch_sampler  # Accelerate's sampler, which splits the batches among the ranks.
    sampler: Any = getattr(batches, "sampler", None)
    size = getattr(batches, "batch_size", None)
    if not isinstance(size, int):
        raise ConfigError(
            "ElasticTrainer: the training loader uses a custom batch sampler, or none; use a loader with batch_size, "
            "and pass a custom order: ElasticTrainer(order=...)"
        )
    if own_order:
        return size, False
    shuffles = isinstance(sampler, RandomSampler) and not sampler.replacement
    if not (shuffles or isinstance(sampler, SequentialSampler)) or len(sampler) != len(loader.dataset):
        raise ConfigError(
            f"ElasticTrainer: the training sampler is a {type(sampler).__name__} whose order cannot be restored "
            "at another world size; pass ElasticTrainer(order=...), a function of the epoch that returns indices"
        )
    return size, shuffles


def leave_stops_to_the_launcher(trainer: Any) -> None:
    """Turn `enable_jit_checkpoint` off under elastic-launch: a drain saves anyway, and SIGTERM must end a worker.

    Its handler would keep workers alive after a node failure until they are killed.
    """
    if not trainer.args.enable_jit_checkpoint or report.end() is None:
        return
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__name__ == "JITCheckpointCallback":
            callback.on_train_end(trainer.args, trainer.state, trainer.control)  # Restores the former handler.
            trainer.remove_callback(callback)
    if os.environ.get("RANK", "0") == "0":
        report.log_to_agent("ignoring enable_jit_checkpoint: a drain saves the last complete step anyway")
