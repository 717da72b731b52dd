"""Lightning's DDP with the gradient of the whole batch, whatever share of it each rank has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from lightning.pytorch.plugins.io import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.integrations.lightning.checkpoint_io import STEP
from elastic.integrations.lightning.cluster import ElasticEnvironment
from elastic.integrations.lightning.evaluation import EvaluationShares
from elastic.integrations.lightning.parts import Part
from elastic.script.error_report import reporting_config_errors


class BatchShares(Protocol):
    """The share that this rank has of the current batch."""

    @property
    def weight(self) -> float:
        """Return the weight of the mean loss of this rank's samples."""

    def exact(self, loader: Any) -> Any:
        """Return the loader that replaces the script's."""

    def parts(self, batch: Any) -> list[Part]:
        """Return the batch in parts that a rank can compute at once."""


class ElasticDDPStrategy(DDPStrategy):
    """Lightning's DDP strategy, with four changes.

    Training data comes in an exact order, and ranks may share the data of evaluations (`process_dataloader`). The loss
    of this rank's samples is weighted, so that gradients are those of the mean over the batch of all ranks
    (`backward`). A batch that is larger than a rank can hold is computed in parts (`training_step`, `backward`). The
    mean of whole numbers over the ranks is not rounded down (`reduce`).
    """

    def __init__(
        self,
        place: ProcessEnvironment,
        checkpoint_io: CheckpointIO,
        shares: BatchShares,
        options: Mapping[str, Any],
        evaluation: EvaluationShares | None = None,
    ) -> None:
        """`options` are those of torch's DistributedDataParallel. Without `evaluation` each rank evaluates all data."""
        super().__init__(
            cluster_environment=ElasticEnvironment(place),
            checkpoint_io=checkpoint_io,
            process_group_backend=place.backend,
            **options,
        )
        self._place = place
        self._shares = shares
        self._evaluation = evaluation
        self._cuts = not options.get("find_unused_parameters") and not options.get("static_graph")
        self._first: Part | None = None
        self._further: list[Part] = []
        self._arguments: tuple[Any, ...] = ()
        self._on_capture: Callable[[dict[str, Any]], None] | None = None

    @property
    def root_device(self) -> torch.device:
        """The device that `elastic.init()` chose."""
        return self._place.device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """The arguments of a DistributedSampler over all workers, even if nodes have different numbers of them."""
        return {"num_replicas": self._place.world_size, "rank": self._place.rank}

    def process_dataloader(self, dataloader: Any) -> Any:
        """Return an exact loader for training, and this rank's share for an evaluation that is split."""
        module = self.lightning_module
        if module is None:
            return dataloader
        trainer = module.trainer
        if trainer.training:
            with reporting_config_errors():
                return self._shares.exact(dataloader)
        if self._evaluation is None or trainer.predicting:
            return dataloader
        if trainer.testing:
            return self._evaluation.share_of(dataloader, "test", trainer.limit_test_batches)
        return self._evaluation.share_of(dataloader, "val", trainer.limit_val_batches)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce over all ranks; the mean of integers is a float64.

        Lightning rounds such a mean down, for example the number of samples of a metric. With unequal shares, a metric
        with `sync_dist=True` would then be too large.
        """
        whole = isinstance(tensor, torch.Tensor) and not tensor.is_floating_point() and not tensor.is_complex()
        if whole and str(reduce_op).lower() in ("mean", "avg"):
            tensor = tensor.double()
        return super().reduce(tensor, group, reduce_op)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the loss of the batch, or of its first part."""
        automatic = self.lightning_module is not None and self.lightning_module.automatic_optimization
        parts = self._shares.parts(args[0]) if automatic and self._cuts and args else []
        if len(parts) < 2:
            self._first, self._further = None, []
            return super().training_step(*args, **kwargs)
        self._first, self._further, self._arguments = parts[0], parts[1:], args[1:]
        with self._unsynced():
            output = super().training_step(parts[0].batch, *args[1:], **kwargs)
        if output is None:
            with reporting_config_errors():
                raise ConfigError(
                    "training_step returned None for a part of a batch; set Trainer(max_per_rank=...) to a rank's "
                    "share at the smallest world size, so that batches are not split"
                )
        return output

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Add the gradient of this rank's samples to that of the batch."""
        first, further = self._first, self._further
        self._first, self._further = None, []
        weight = self._shares.weight
        result: torch.Tensor = super().backward(
            closure_loss * (weight * (first.share if first else 1.0)), optimizer, *args, **kwargs
        )
        for left, part in zip(range(len(further) - 1, -1, -1), further, strict=True):
            with self._unsynced() if left else contextlib.nullcontext():
                output = super().training_step(part.batch, *self._arguments)
                loss = output["loss"] if isinstance(output, Mapping) else output
                loss = loss / self.lightning_module.trainer.accumulate_grad_batches
                super().backward(loss * (weight * part.share), optimizer, *args, **kwargs)
        return result

    def capture(self, save: Callable[[str], None]) -> dict[str, Any]:
        """Return the checkpoint that Lightning would write now, by calling `save`, which is Trainer.save_checkpoint."""
        captured: list[dict[str, Any]] = []
        self._on_capture = captured.append
        try:
            save(STEP)
        finally:
            self._on_capture = None
        return captured[0]

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint on rank 0, or pass it to `capture` on every rank."""
        if self._on_capture is not None:
            self._on_capture(checkpoint)
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def barrier(self, name: str | None = None) -> None:
        """Wait for all ranks, except in `capture`, where nothing is written."""
        if self._on_capture is None:
            super().barrier(name)

    def _unsynced(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which gradients are not exchanged, because further parts add to them."""
        model = self.model
        return model.no_sync() if isinstance(model, DistributedDataParallel) else contextlib.nullcontext()
