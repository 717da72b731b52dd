"""`Trainer` replaces `lightning.Trainer` for a changing world size."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import lightning.pytorch
import torch
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import Strategy

from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.integrations import trackers
from elastic.integrations.lightning.checkpoint_io import FencedCheckpointIO
from elastic.integrations.lightning.data import ExactLoaders
from elastic.integrations.lightning.evaluation import EvaluationShares
from elastic.integrations.lightning.run import Run
from elastic.integrations.lightning.strategy import ElasticDDPStrategy
from elastic.script.error_report import reporting_config_errors
from elastic.train import report
from elastic.train.process_group.init import init

DDP: Final[Mapping[str, Mapping[str, Any]]] = {
    "auto": {},
    "ddp": {},
    "ddp_find_unused_parameters_false": {},
    "ddp_find_unused_parameters_true": {"find_unused_parameters": True},
}
"""Supported strategies, and their options for torch's DistributedDataParallel."""


class Trainer(lightning.pytorch.Trainer):
    """Lightning's Trainer, which resumes at the same step when the world size changes.

    ::

        trainer = Trainer(max_epochs=10, callbacks=[ModelCheckpoint(monitor="val_loss")])
        trainer.fit(model, datamodule=data)

    It takes the arguments of Lightning's Trainer. The launcher sets world size, nodes and devices. Exact loaders
    replace the training loaders of the script. Each rank evaluates all of the validation data, or its share of it.

    Args:
        global_batch: The number of samples of one batch over all ranks. Default: batch_size times the world size of the
            first generation. A step has `accumulate_grad_batches` of such batches.
        max_per_rank: The largest number of samples that a rank computes at once. Default: the batch_size of the loader.
            At a smaller world size, a larger share is split into several calls of training_step.
        save_every: The number of steps between checkpoints on disk that `elastic.State` writes. None: only for planned
            stops; ModelCheckpoint writes its files anyway.
        memory_every: The number of steps between checkpoints in the memory of the nodes; None: never.
        share_evaluation: Split the validation and test data among the ranks. Each sample is evaluated once, so a metric
            needs `sync_dist=True`, or must be one of torchmetrics.
        ddp: The options of torch's DistributedDataParallel.
        use_distributed_sampler: Must be False. Lightning's default is True, which LightningCLI would pass.
        **options: The options of Lightning's Trainer.

    Raises:
        ConfigError: An option cannot be exact at a changing world size. The message says what to use.
    """

    def __init__(
        self,
        *,
        global_batch: int | None = None,
        max_per_rank: int | None = None,
        save_every: int | None = None,
        memory_every: int | None = 1,
        share_evaluation: bool = False,
        ddp: Mapping[str, Any] | None = None,
        use_distributed_sampler: bool = False,
        **options: Any,
    ) -> None:
        with reporting_config_errors():
            _check(options, use_distributed_sampler, global_batch=global_batch, max_per_rank=max_per_rank)
            ddp_options = {**_strategy(options.pop("strategy", "auto")), **(ddp or {})}
        place = init(backend="gloo" if options.get("accelerator") == "cpu" else None)
        self._elastic_folder = place.checkpoint_dir or None
        self._elastic_run = run = Run(place, every=save_every, memory_every=memory_every)
        data = ExactLoaders(
            place,
            samples=global_batch,
            limit=max_per_rank,
            seed=int(os.environ.get("PL_GLOBAL_SEED", "0")),
            before_fetch=run.before_fetch,
        )
        io = FencedCheckpointIO(
            place.checkpoint_dir,
            os.environ.get("ELASTIC_FENCE", ""),
            lambda: run.committed,
            run.restored_checkpoint,
        )
        options |= _world(place, options) | {
            "strategy": ElasticDDPStrategy(
                place, io, data, ddp_options, EvaluationShares(place) if share_evaluation else None
            ),
            "callbacks": [run, *_listed(options.get("callbacks"))],
            "use_distributed_sampler": False,
        }
        super().__init__(**options)
        run.connect(self, data, io)

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train from the newest step of this job; on the first start, from `ckpt_path` or from scratch.

        Args:
            model: As in Lightning.
            train_dataloaders: As in Lightning.
            val_dataloaders: As in Lightning.
            datamodule: As in Lightning.
            ckpt_path: As in Lightning; used only for the first start of a job.
            weights_only: As in Lightning.

        Raises:
            SystemExit: A planned stop: the step is saved, and the process exits with code 143.
        """
        path = self._elastic_run.begin(model, ckpt_path)
        trackers.follow(self.loggers, self._elastic_run.resumes_at, folder=self._elastic_folder)
        super().fit(model, train_dataloaders, val_dataloaders, datamodule, path, weights_only)
        self._elastic_run.end()

    @property
    def enable_validation(self) -> bool:
        """Whether validation may run; False before the first batch after a restart, because it has already run."""
        return bool(super().enable_validation) and not self._elastic_run.resuming


def _check(options: Mapping[str, Any], use_distributed_sampler: bool, **numbers: int | None) -> None:
    """Raise `ConfigError` for an option that cannot be exact."""
    for name, number in numbers.items():
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ConfigError(f"Trainer({name}={number!r}): write a number of samples, 1 or more")
    if use_distributed_sampler:
        raise ConfigError(
            "Trainer(use_distributed_sampler=True) makes the data order depend on the world size; leave it out: "
            "training data is split exactly, and Trainer(share_evaluation=True) splits validation and test data"
        )
    for plugin in _listed(options.get("plugins")):
        if isinstance(plugin, ClusterEnvironment | CheckpointIO):
            kind = "cluster environment" if isinstance(plugin, ClusterEnvironment) else "CheckpointIO"
            raise ConfigError(f"Trainer(plugins={type(plugin).__name__}()): this Trainer has a {kind}; leave it out")


def _strategy(given: Any) -> Mapping[str, Any]:
    """Return the options of DistributedDataParallel for a strategy. Raises `ConfigError` for another strategy."""
    if isinstance(given, str) and given in DDP:
        return DDP[given]
    name = type(given).__name__ if isinstance(given, Strategy) else repr(given)
    raise ConfigError(
        f'Trainer(strategy={name}): only "ddp" is supported; set its options with Trainer(ddp={{...}}); for sharded '
        "models use elastic.State with fully_shard in a custom training loop"
    )


def _world(place: ProcessEnvironment, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return Lightning's arguments for the number of workers, from the launcher."""
    workers = place.local_world_size
    nodes = max(1, place.world_size // workers)
    for name, number, unsaid in (("devices", workers, -1), ("num_nodes", nodes, 1)):
        asked = options.get(name)
        if isinstance(asked, int) and asked not in (unsaid, number) and place.rank == 0 and place.generation <= 1:
            report.log_to_agent(f"ignoring Trainer({name}={asked}): the launcher has started {number}", warn=True)
    accelerator = options.get("accelerator", "auto")
    if place.device.type == "cpu":
        return {"accelerator": "cpu", "devices": workers, "num_nodes": nodes}
    devices: Any = workers if torch.cuda.device_count() >= workers else [place.device.index]
    return {"accelerator": accelerator, "devices": devices, "num_nodes": nodes}


def _listed(given: Any) -> list[Any]:
    """Convert one object or several to a list, as Lightning accepts both."""
    if given is None:
        return []
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
