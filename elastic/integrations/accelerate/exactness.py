"""Finds the training loader, and refuses loaders and options that cannot be exact at every world size.

Each refusal is a `ConfigError` that says what to use instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from elastic._text import counted
from elastic.errors import ConfigError
from elastic.train.data.loader import DataLoader
from elastic.train.data.sampler import ElasticSampler

Loader = torch.utils.data.DataLoader[Any]

SHARDED: Final = {
    "deepspeed_plugin": ("DeepSpeed", "ACCELERATE_USE_DEEPSPEED"),
    "deepspeed_plugins": ("DeepSpeed", "ACCELERATE_USE_DEEPSPEED"),
    "fsdp_plugin": ("FSDP", "ACCELERATE_USE_FSDP"),
    "megatron_lm_plugin": ("Megatron-LM", "ACCELERATE_USE_MEGATRON_LM"),
    "torch_tp_plugin": ("tensor parallelism", "ACCELERATE_USE_PARALLELISM_CONFIG"),
    "parallelism_config": ("a parallelism_config", "ACCELERATE_USE_PARALLELISM_CONFIG"),
}
"""Options of plugins that keep their state in their own format, with their variables of `accelerate launch`."""


def check_plugins(options: Mapping[str, Any], environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` if an option of Accelerate, or `accelerate launch`, asks for more than DDP."""
    for option, (name, variable) in SHARDED.items():
        if options.get(option) is not None or environ.get(variable, "").lower() == "true":
            raise ConfigError(
                f"ElasticAccelerator: {name} is not supported; use DDP, which is the default, or write the loop with "
                "elastic.State and torch's fully_shard (docs/guides/training.md)"
            )


def check_options(accelerator: Accelerator, processes: int) -> None:
    """Raise `ConfigError` for an Accelerator whose training cannot continue at another world size.

    `processes` is the number of workers that the launcher started.
    """
    if DistributedType(accelerator.distributed_type) is DistributedType.XLA:
        raise ConfigError("ElasticAccelerator: XLA is not supported; use GPUs or CPUs")
    if not accelerator.gradient_state.sync_with_dataloader:
        raise ConfigError(
            "ElasticAccelerator: with sync_with_dataloader=False a step could span two epochs, and no saved position "
            "can describe that; leave it out"
        )
    if accelerator.num_processes != processes:
        counts = counted(accelerator.num_processes, "process", "processes")
        raise ConfigError(
            f"ElasticAccelerator: Accelerate counts {counts}, but the launcher started {processes}; create the "
            "ElasticAccelerator before any Accelerator, PartialState or logger of Accelerate"
        )


def training_loader_of(things: Iterable[Any], *, known: bool) -> Loader | None:
    """Find the training loader among the arguments of `prepare`; None if there is none.

    It is the one that does not read its dataset in order (`shuffle=True`, a sampler). If all do, it is the first one,
    if an optimizer is prepared with it and none is `known` yet. All others are for evaluation.
    """
    every = list(things)
    loaders = [thing for thing in every if isinstance(thing, torch.utils.data.DataLoader)]
    loaders = [loader for loader in loaders if not getattr(loader, "_is_accelerate_prepared", False)]
    marked = [loader for loader in loaders if _reorders(loader)]
    if len(marked) + known > 1:
        raise ConfigError(
            "ElasticAccelerator: a second loader shuffles or has a sampler, but a job has only one training loader; "
            "combine the datasets (torch.utils.data.ConcatDataset or StackDataset), or read evaluation data in order"
        )
    if marked:
        return marked[0]
    trains = any(isinstance(thing, torch.optim.Optimizer) for thing in every)
    return loaders[0] if loaders and trains and not known else None


def check_loader(loader: Loader, accelerator: Accelerator) -> None:
    """Raise `ConfigError` if training cannot resume in the middle of this loader at another world size."""
    if problem := _problem(loader, accelerator):
        raise ConfigError(f"ElasticAccelerator: the training loader {problem}")


@contextmanager
def whole_batches_if_uneven(loader: Loader, accelerator: Accelerator) -> Iterator[None]:
    """Return a context in which an evaluation loader can be prepared at every world size, even with `split_batches`.

    Accelerate refuses a batch that the processes cannot split evenly, which would end a job when its world size
    changes. In that case each process takes whole batches; `gather_for_metrics` returns the same values.
    """
    configuration = accelerator.dataloader_config
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if not configuration.split_batches or not size or size % accelerator.num_processes == 0:
        yield
        return
    configuration.split_batches = False
    try:
        yield
    finally:
        configuration.split_batches = True


def _problem(loader: Loader, accelerator: Accelerator) -> str:
    sampler = loader.sampler
    if isinstance(loader.dataset, IterableDataset):
        return (
            "reads an IterableDataset, which has no position to resume from; use a dataset with __len__ and "
            "__getitem__, or write the loop with elastic.State and elastic.ElasticStream (docs/guides/training.md)"
        )
    if accelerator.dispatch_batches:
        return "cannot dispatch batches, because each process reads its own share; leave out dispatch_batches"
    if accelerator.use_stateful_dataloader:
        return "saves its position anyway; leave out use_stateful_dataloader"
    if isinstance(loader, DataLoader) or type(loader).__iter__ is not torch.utils.data.DataLoader.__iter__:
        return f"is of type {type(loader).__name__}, which builds its own batches; use torch.utils.data.DataLoader"
    if loader.batch_size is None or isinstance(sampler, BatchSampler):
        return (
            "uses a custom batch sampler, or none; write DataLoader(dataset, batch_size=..., "
            "sampler=elastic.ElasticSampler(dataset, order=...)); order(epoch) may sort by length or weight"
        )
    if not getattr(loader, "in_order", True):
        return "returns batches in no fixed order; leave out in_order=False"
    if isinstance(sampler, RandomSampler) and (sampler.replacement or sampler.num_samples != len(loader.dataset)):  # type: ignore[arg-type]
        return "draws a random selection of the samples; write sampler=elastic.ElasticSampler(dataset, order=...)"
    if isinstance(sampler, ElasticSampler):
        return _problem_of_batch(sampler)
    if not isinstance(sampler, RandomSampler | SequentialSampler):
        return (
            f"uses a {type(sampler).__name__}, whose order cannot be restored at another world size; write "
            "sampler=elastic.ElasticSampler(dataset, order=...)"
        )
    return ""


def _problem_of_batch(sampler: ElasticSampler) -> str:
    if sampler.batch is None:
        return ""
    return "sets the size of a step; leave batch= out of its ElasticSampler, and set total_batch_size instead"


def _reorders(loader: Loader) -> bool:
    """Whether a loader reads its dataset in an order other than front to back."""
    if isinstance(loader.dataset, IterableDataset):
        return False
    return loader.batch_size is None or not isinstance(loader.sampler, SequentialSampler)
