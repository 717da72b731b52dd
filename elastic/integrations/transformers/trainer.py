"""`ElasticTrainer`: Hugging Face's `Trainer`, which resumes exactly at any world size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import TrainOutput, rotate_checkpoints, unwrap_peft_model

from elastic.errors import ConfigError
from elastic.integrations import trackers
from elastic.integrations.loader_options import options_of
from elastic.integrations.transformers import limits
from elastic.integrations.transformers.label_shift import shifts_labels
from elastic.integrations.transformers.run import TrainingRun
from elastic.script.error_report import reporting_config_errors

Batches: TypeAlias = tuple[list[Any], Any]
"""The batches of a step, and the divisor of their losses; None: each loss is the mean over its own items."""

if TYPE_CHECKING:
    _Base: TypeAlias = Trainer
else:
    _Base = object


class ElasticTrainerMixin(_Base):
    """Makes a `Trainer` elastic; put it before the Trainer: `class MyTrainer(ElasticTrainerMixin, Trainer)`.

    Each step takes the same samples at any world size. A rank takes its share in batches of at most
    `per_device_train_batch_size`, so their number replaces `gradient_accumulation_steps`. Every complete step is saved
    to the memory of the nodes. A planned stop ends the process after a step with `SystemExit(143)`.

    Args:
        *args: The arguments of the Trainer.
        global_batch: The number of samples of a step over all ranks. Default: `per_device_train_batch_size *
            gradient_accumulation_steps * world size` of the first generation, which later generations keep.
        order: `order(epoch)` returns the indices of an epoch, the same on every rank. Default: shuffled by `data_seed`
            or `seed`, or in the order of the dataset with `train_sampling_strategy="sequential"`.
        memory_every: Save a checkpoint to the memory of the nodes at each multiple of this number of steps; None:
            never.
        keep_frozen: Save the frozen weights of a model with adapters (PEFT) too. By default the script loads them in
            each process, as for PEFT's checkpoints.
        **kwargs: The keyword arguments of the Trainer.

    Raises:
        ConfigError: A setting of the Trainer cannot be exact at another world size. The message says what to use.
    """

    compute_loss: Any
    """The method of the Trainer; during training it applies the weight of each batch."""

    def __init__(
        self,
        *args: Any,
        global_batch: int | None = None,
        order: Callable[[int], Sequence[Any]] | None = None,
        memory_every: int | None = 1,
        keep_frozen: bool = False,
        **kwargs: Any,
    ) -> None:
        self._elastic: TrainingRun | None = None
        self._elastic_weight: tuple[float, int] | None = None
        self._elastic_options = (global_batch, order, memory_every)
        self._elastic_keep_frozen = keep_frozen
        super().__init__(*args, **kwargs)
        self.compute_loss = partial(_weighted, self, self.compute_loss)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train to the end, from the newest step of this job.

        That is the newest of: the memory of the nodes, the checkpoint of a planned stop, and the newest `checkpoint-*`
        in `output_dir` that an ElasticTrainer saved. If the job has none of these, it starts from
        `resume_from_checkpoint`. A training that has already finished returns its output again.

        Args:
            resume_from_checkpoint: As in `Trainer.train`; used only for the first start of a job.
            trial: As in `Trainer.train`.
            ignore_keys_for_eval: As in `Trainer.train`.

        Returns:
            The output of `Trainer.train`.

        Raises:
            ConfigError: A setting cannot be exact, `train` was called before, or the data has changed.
            CheckpointError: No rank can read a step as new as the newest committed one.
            SystemExit: A planned stop: the step is saved, and the process exits with code 143.
        """
        with reporting_config_errors():
            limits.require_exact(self, trial)
            if self._elastic is not None:
                raise ConfigError(
                    "ElasticTrainer: train() was called a second time; a job trains once, so start another job"
                )
            self._elastic = run = TrainingRun(self, *self._elastic_options, keep_frozen=self._elastic_keep_frozen)
        limits.leave_stops_to_the_launcher(self)
        path = run.resume(resume_from_checkpoint)
        if (output := run.finished()) is not None:
            return output
        folder = os.environ.get("ELASTIC_CHECKPOINT_DIR") or self.args.output_dir
        trackers.follow(self.callback_handler.callbacks, run.step, folder=folder)
        self.callback_handler.callbacks.insert(0, _Steps(run))
        return cast("TrainOutput", super().train(path, trial, ignore_keys_for_eval))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of the Trainer, with batches that are exact at any world size."""
        loader = super().get_train_dataloader()
        run = self._elastic
        if run is None:
            return cast("DataLoader[Any]", loader)
        with reporting_config_errors():
            batch_size, shuffle = limits.sampling(loader, own_order=self._elastic_options[1] is not None)
            batches = run.plan(
                len(loader.dataset), batch_size, shuffle=shuffle, drop_last=self.args.dataloader_drop_last
            )
        return DataLoader(loader.dataset, batch_sampler=batches, **options_of(loader))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as the Trainer does; the training time includes that of earlier processes."""
        if self._elastic is not None and "train_runtime" in logs:
            self._elastic.count_earlier_time(logs)
        super().log(logs, start_time)

    def loss_items(self, batch: Any) -> int | None:
        """Return the number of items over which the loss of a batch is the mean; override it for another loss.

        Args:
            batch: A batch of the training loader, before it is moved to the device.

        Returns:
            The number of labels that are not -100, if each sample has several (for a causal language model without the
            first label of each sample, which is not a target); None if the loss is a mean over samples.
        """
        labels = batch.get("shift_labels", batch.get("labels")) if hasattr(batch, "get") else None
        if not isinstance(labels, torch.Tensor) or labels.dim() < 2 or labels.is_floating_point():
            return None
        if "shift_labels" not in batch and shifts_labels(unwrap_peft_model(self.model)):
            labels = labels[..., 1:]
        return int(labels.ne(-100).sum())

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Batches:
        """Take the batches of the next step, and weight each by its share of the step."""
        run = self._elastic
        if run is None:
            return cast("Batches", super().get_batch_samples(epoch_iterator, num_batches, device))
        if self.state.global_step >= self.state.max_steps:
            return [], None  # Resumed after the last step.
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        with reporting_config_errors():
            run.begin_step(self.loss_items, batches)
        return batches, None  # The loss of a batch is a mean over its own items.

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run the forward and backward pass of one batch, with its weight in the step."""
        run = self._elastic
        if run is None:
            return cast("torch.Tensor", super().training_step(model, inputs, num_items_in_batch))
        self._elastic_weight = run.next_weight()
        try:
            loss: torch.Tensor = super().training_step(model, inputs, None)
        finally:
            self._elastic_weight = None
        run.add_loss(loss)
        return loss

    def prediction_step(
        self, model: Any, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Any, Any, Any]:
        """Evaluate one batch. The loss of the last batches is that of their own samples, at any world size.

        Accelerate pads the last batches of the ranks with samples from the start. It removes them from the predictions,
        but not from the loss of a batch.
        """
        result = super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        place = self.accelerator.gradient_state
        size = _samples(inputs)
        if self.args.world_size > 1 and place.end_of_dataloader and 0 < place.remainder < size * self.args.world_size:
            own = max(1, min(size, place.remainder - size * self.args.process_index))
            real = {
                name: value[:own] if isinstance(value, torch.Tensor) and value.shape[:1] == (size,) else value
                for name, value in inputs.items()
            }
            loss, _, _ = super().prediction_step(model, real, True, ignore_keys)
            result = (loss, *result[1:])
        return cast("tuple[Any, Any, Any]", result)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        run = self._elastic
        if run is None or not run.load_model(resume_from_checkpoint, self.model if model is None else model):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        run, save = self._elastic, super()._save_checkpoint
        if run is None:
            save(model, trial)
            return
        folder = run.save_checkpoint(lambda: save(model, trial))
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder))
        if self.args.should_save:
            rotate_checkpoints(
                output_dir=self.args.output_dir,
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )


class ElasticTrainer(ElasticTrainerMixin, Trainer):
    """Hugging Face's `Trainer`, with the arguments of `ElasticTrainerMixin`."""


def _weighted(
    trainer: Any, compute_loss: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return the loss of `compute_loss`, a mean over the batch, times the weight of the batch in a training step."""
    if trainer._elastic_weight is not None:
        weight, items = trainer._elastic_weight
    else:
        weight, items = 1.0, trainer.loss_items(inputs) or _samples(inputs)
    training = trainer._elastic_weight is not None
    kwargs["num_items_in_batch"] = None
    if trainer.compute_loss_func is not None:
        kwargs["num_items_in_batch"] = torch.tensor(max(items, 1), device=trainer.args.device)
        if trainer.args.average_tokens_across_devices:
            weight /= trainer.args.world_size  # The Trainer multiplies by the world size.
    elif training:
        weight *= trainer.current_gradient_accumulation_steps  # The Trainer divides by this number.
    result = compute_loss(model, inputs, *args, **kwargs)
    loss = result[0] if isinstance(result, tuple) else result
    if weight == 0.0:
        loss = loss.nan_to_num()  # The mean over no labels is nan, and so is its product with 0.
    return (loss * weight, *result[1:]) if isinstance(result, tuple) else loss * weight


def _samples(inputs: Any) -> int:
    """Return the number of samples of a batch."""
    return next((len(value) for value in inputs.values() if isinstance(value, torch.Tensor)), 1)


class _Steps(TrainerCallback):
    """Notifies a `TrainingRun` of the Trainer's progress."""

    def __init__(self, run: TrainingRun) -> None:
        self._run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.begun(kwargs["optimizer"], kwargs["lr_scheduler"])

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.begin_epoch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Commit the previous step, whose log, evaluation and checkpoint are complete."""
        self._run.commit()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Correct the epoch: the Trainer counts batches, whose number per step depends on the world size."""
        state.epoch = self._run.epochs_done

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with reporting_config_errors():
            limits.require_whole_epoch(control, self._run)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.finish()
