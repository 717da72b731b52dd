"""`ElasticAccelerator`: an Accelerator whose training resumes at another world size with the same numbers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from torch.utils.data import RandomSampler

import elastic
from elastic.errors import ConfigError
from elastic.integrations import trackers
from elastic.integrations.accelerate import exactness
from elastic.integrations.accelerate.saved_state import SavedStates
from elastic.integrations.accelerate.scheduler import ElasticScheduler
from elastic.integrations.accelerate.training import Training
from elastic.integrations.accelerate.training_data import TrainingData
from elastic.integrations.accelerate.training_loader import TrainingLoader, broadcasting_seed
from elastic.integrations.accelerate.training_step import TrainingStep
from elastic.integrations.accelerate.uneven_batches import gather_samples
from elastic.script.error_report import reporting_config_errors
from elastic.train.data.sampler import ElasticSampler
from elastic.train.state import State


class ElasticAccelerator(Accelerator):
    """Accelerate's Accelerator for a changing world size: the same steps, the same numbers, no sample twice.

    ::

        accelerator = ElasticAccelerator(gradient_accumulation_steps=2)
        model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
        for epoch in accelerator.epochs(3):
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model(inputs), targets))      # a mean over the samples of the batch
                    optimizer.step()
                    optimizer.zero_grad()

    The training loader is the prepared loader that shuffles; if none does, the first one that is prepared together with
    an optimizer. A step has the same samples at any world size, in as many batches as a process needs for its share. It
    is committed when the loop requests the next batch. All other loaders are those of Accelerate.

    `epochs` restores the prepared and registered objects and the position in the data at its start.

    Args:
        total_batch_size: The number of samples of one step over all processes. Default: `batch_size *
            gradient_accumulation_steps` times the world size of the first generation, which later generations keep.
        checkpoint_every: Save a checkpoint to disk at each multiple of this number of steps; None: only for a planned
            stop.
        memory_every: Save a checkpoint to the memory of every node at each multiple of this number of steps; None:
            never.
        cpu: As in Accelerate. Without a GPU the processes train together on the CPU anyway.
        **options: The other options of Accelerate.

    Raises:
        ConfigError: An option cannot be exact at every world size. The message says what to use instead.
    """

    def __init__(
        self,
        *,
        total_batch_size: int | None = None,
        checkpoint_every: int | None = None,
        memory_every: int | None = 1,
        cpu: bool = False,
        **options: Any,
    ) -> None:
        with reporting_config_errors():
            exactness.check_plugins(options, os.environ)
        cpu = cpu or os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true")
        handlers = options.get("kwargs_handlers") or []
        timeouts = [handler.timeout for handler in handlers if isinstance(handler, InitProcessGroupKwargs)]
        place = elastic.init(
            backend="gloo" if cpu else None, timeout_s=timeouts[0].total_seconds() if timeouts else None
        )
        super().__init__(cpu=cpu or place.device.type == "cpu", **options)
        with reporting_config_errors():
            exactness.check_options(self, place.world_size)
        self._source: exactness.Loader | None = None
        """The training loader that the script created."""
        self._training = Training(self, total_batch_size)
        self._step = TrainingStep(self, self._training, checkpoint_every=checkpoint_every, memory_every=memory_every)
        self._states = SavedStates(self, self._training, self._step)
        self._tracked: trackers.TrackedRun | None = None

    # Preparation.

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare as Accelerate does, with an exact training loader."""
        with reporting_config_errors():
            found = exactness.training_loader_of(args, known=self._training.has_data)
        if found is not None:  # Its truth value is its length, which not every loader has.
            self._source = found
        return super().prepare(*args, device_placement=device_placement)

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        """Return an exact loader for the training loader, and Accelerate's loader for any other."""
        if isinstance(data_loader, TrainingLoader):
            return data_loader
        with reporting_config_errors():
            if self._source is None:
                self._source = exactness.training_loader_of([data_loader], known=False)
            if self._source is None or data_loader is not self._source:
                with exactness.whole_batches_if_uneven(data_loader, self):
                    return super().prepare_data_loader(data_loader, device_placement, slice_fn_for_dispatch)
            exactness.check_loader(data_loader, self)
            data = self._data_of(data_loader)
            placed = self.device_placement if device_placement is None else device_placement
            loader = TrainingLoader(
                data_loader,
                lambda: self._training.data,
                self._step,
                device=self.device if placed else None,
                non_blocking=self.non_blocking,
            )
            self._training.read_from(loader, data)
        return loader

    def prepare_model(
        self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False, **options: Any
    ) -> Any:
        """Prepare as Accelerate does, and save the model, unless it is in evaluation mode and never changes."""
        prepared = super().prepare_model(model, device_placement, evaluation_mode, **options)
        return prepared if evaluation_mode else self._kept("model", prepared)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Prepare as Accelerate does, and save the optimizer."""
        prepared = super().prepare_optimizer(optimizer, device_placement)
        if prepared is not optimizer:
            prepared.optimizer.register_step_post_hook(lambda *_: self._step.optimizer_stepped())
            self._kept("optimizer", prepared.optimizer)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepare as Accelerate does, with the same number of steps at every world size, and save the scheduler."""
        prepared = super().prepare_scheduler(scheduler)
        if isinstance(prepared, ElasticScheduler):
            return prepared
        exact = ElasticScheduler(prepared, lambda: self._training.data if self._training.has_data else None)
        self._schedulers[self._schedulers.index(prepared)] = exact
        return self._kept("scheduler", exact)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save further objects with `state_dict` and `load_state_dict`. Call it before `epochs`."""
        super().register_for_checkpointing(*objects)
        for thing in objects:
            self._kept("registered", thing)

    def free_memory(self, *objects: Any) -> Any:
        """Release the prepared objects, as Accelerate does. Raises `ConfigError` after the first commit."""
        with reporting_config_errors():
            self._training.forget()
        self._source = None
        return super().free_memory(*objects)

    # The training.

    @property
    def elastic(self) -> State:
        """The `elastic.State` of this training: its `step` and `epoch`, and your plain values.

        Raises `ConfigError` before `epochs` or `restore`.
        """
        with reporting_config_errors():
            return self._training.state

    def restore(self) -> bool:
        """Resume from the newest step of this job, whatever its world size. A collective; `epochs` calls it.

        Call it yourself if the script needs the restored values before its loop. A second call does nothing.

        Returns:
            False if there was nothing to resume from, and training starts from scratch.
        """
        with reporting_config_errors():
            restored = self._training.restore()
        if self._tracked is not None and self._tracked.step is None:
            self._tracked.resumed(self.elastic.step)
        return restored

    def epochs(self, total: int) -> Iterator[int]:
        """Loop over the remaining epochs. An interrupted epoch is entered again, for its remaining batches.

        Args:
            total: The number of epochs of the whole training.

        Yields:
            The number of each epoch, below `total`.
        """
        self.restore()
        with self._step.in_epochs():
            for epoch in elastic.epochs(self.elastic, total):
                yield epoch
                self.commit()

    def commit(self, loss: Any = None) -> None:
        """Commit the finished step. The training loader does so when the loop requests the next batch.

        Call it if `break` leaves both the loop over the batches and the one over `epochs`, or to commit before a long
        operation. In the middle of a step, or if the step is already committed, it does nothing.

        Args:
            loss: The training loss for the progress display; by default the last one passed to `backward`.

        Raises:
            SystemExit: A planned stop: the step is saved, and the process exits with code 143.
        """
        self._step.commit(loss)

    def end_training(self) -> None:
        """Commit and save the last step, and end as Accelerate does."""
        if self._training.restored:
            self.commit()
            self.elastic.finish()
        super().end_training()

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Return a context manager for a batch: only the last one exchanges gradients and steps the optimizers."""
        if not self._step.running:
            with super().accumulate(*models):
                yield
            return
        each = bool(self.gradient_state.plugin_kwargs.get("sync_each_batch", False))
        with ExitStack() as stack:
            if not self.sync_gradients and not each:
                for model in models:
                    stack.enter_context(self.no_sync(model))
            yield

    def backward(self, loss: Any, **kwargs: Any) -> None:
        """Add to the gradient of the mean over the whole step. `loss` is the mean over the samples of the batch.

        Raises `ConfigError` if the batch does not come from the training loader.
        """
        factor = self._step.weigh(loss) * self.gradient_accumulation_steps
        super().backward(loss if factor == 1 else loss * factor, **kwargs)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """Unscale as Accelerate does; in the middle of a step do nothing, because the gradient is not complete."""
        if not self._step.is_incomplete:
            super().unscale_gradients(optimizer)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip as Accelerate does; in the middle of a step only return the norm so far."""
        if not self._step.is_incomplete:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip as Accelerate does; in the middle of a step do nothing."""
        if not self._step.is_incomplete:
            super().clip_grad_value_(parameters, clip_value)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather as Accelerate does, and without padding for training batches, whose sizes may differ by one."""
        if not self._step.running:
            return super().gather_for_metrics(input_data, use_gather_object)
        samples = self._training.data.sampler.samples
        return gather_samples(self, input_data, samples, as_objects=use_gather_object)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Skip batches as Accelerate does; a restored training loader is returned unchanged and keeps its position.

        Raises `ConfigError` for a training loader whose position was not restored.
        """
        if dataloader is not self._training.loader:
            return super().skip_first_batches(dataloader, num_batches)
        if num_batches and not (self._training.resumed or self._states.loaded):
            with reporting_config_errors():
                raise ConfigError(
                    "skip_first_batches cannot skip batches of the training loader: the number of batches per step "
                    "depends on the world size; call accelerator.load_state() instead, which restores the position in "
                    "the data"
                )
        return dataloader

    # Trackers.

    def init_trackers(
        self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: dict[str, Any] | None = None
    ) -> None:
        """Start trackers as Accelerate does; W&B, MLflow and TensorBoard continue the run of earlier generations."""
        tracked = trackers.prepare(self.elastic.step if self._training.restored else None)
        if "mlflow" in [str(getattr(name, "value", name)) for name in self.log_with]:
            tracked.find_mlflow_run()
        super().init_trackers(project_name, config, init_kwargs)
        tracked.attach(self.trackers)
        self._tracked = tracked

    # Checkpoints in Accelerate's format.

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **options: Any
    ) -> Path:
        """Save as Accelerate does, with the position in the data; the directory is complete or absent. A collective."""
        with reporting_config_errors():
            return self._states.save(
                output_dir,
                lambda folder: super(ElasticAccelerator, self).save_state(folder, safe_serialization, **options),
            )

    def load_state(self, input_dir: str | os.PathLike[str] | None = None, *args: Any, **options: Any) -> None:
        """Load as Accelerate does, with the position in the data.

        Before the first batch of a process it does nothing if this job has already saved a step: the restarted script
        continues from that step.
        """
        with reporting_config_errors():
            self._states.load(
                input_dir, lambda folder: super(ElasticAccelerator, self).load_state(folder, *args, **options)
            )

    # Private.

    def _kept(self, kind: str, thing: Any) -> Any:
        with reporting_config_errors():
            self._training.keep(kind, thing)
        return thing

    def _data_of(self, loader: exactness.Loader) -> TrainingData:
        given = loader.sampler
        if isinstance(given, ElasticSampler):
            sampler = given
        else:
            known = self.dataloader_config.data_seed
            generator = loader.generator
            seed = known if known is not None else generator.initial_seed() if generator else torch.initial_seed()
            shuffle = isinstance(given, RandomSampler)
            sampler = ElasticSampler(
                loader.dataset,  # type: ignore[arg-type]  # Not an iterable one.
                shuffle=shuffle,
                seed=broadcasting_seed(seed, broadcast_object_list),
            )
        size = loader.batch_size or 1
        nominal = size * self.gradient_accumulation_steps
        default = nominal if self.split_batches else nominal * self.num_processes
        total = self._training.total_batch_size
        return TrainingData(
            sampler,
            per_rank=-(-size // self.num_processes) if self.split_batches else size,
            total=default if total is None else total,
            fixed_total=total is not None,
            nominal=nominal,
            drop_last=loader.drop_last,
            own_sampler=sampler is given,
        )
