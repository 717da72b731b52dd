"""An Accelerator whose training continues in another world with the same numbers: `ElasticAccelerator`."""

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
    """Accelerate's Accelerator for a world that may change: the same steps, the same numbers, no sample twice.

    ::

        accelerator = ElasticAccelerator(gradient_accumulation_steps=2)
        model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)
        for epoch in accelerator.epochs(3):
            for inputs, targets in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model(inputs), targets))      # a mean over the samples of the batch
                    optimizer.step()
                    optimizer.zero_grad()

    Of the loaders that are prepared, the training loader is the one that shuffles; if none does, the first one that is
    prepared together with an optimizer. A step has the same samples in every world, in as many batches as a process
    needs for its share. It is committed when the loop asks for the next batch. All other loaders stay Accelerate's own.

    What is prepared or registered for checkpointing, and the place in the data, is restored when `epochs` begins.

    Args:
        total_batch_size: The samples of one step over all processes. Without it `batch_size *
            gradient_accumulation_steps` times the processes of the first world, which later worlds remember.
        checkpoint_every: Save to disk at each multiple of these steps; None: only when a planned change asks for it.
        memory_every: Copy to the memory of every node at each multiple of these steps; None: never.
        cpu: As Accelerate's. Without a GPU the processes train together on the CPU anyway.
        **options: Accelerate's own.

    Raises:
        ConfigError: An option cannot be exact in every world; the line says what to use.
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
        """The loader for training, as the script has made it."""
        self._training = Training(self, total_batch_size)
        self._step = TrainingStep(self, self._training, checkpoint_every=checkpoint_every, memory_every=memory_every)
        self._states = SavedStates(self, self._training, self._step)
        self._tracked: trackers.TrackedRun | None = None

    # What is prepared.

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Prepare as Accelerate does, and make the training loader exact."""
        with reporting_config_errors():
            found = exactness.training_loader_of(args, known=self._training.has_data)
        if found is not None:  # Its truth value is its length, which not every loader has.
            self._source = found
        return super().prepare(*args, device_placement=device_placement)

    def prepare_data_loader(
        self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None
    ) -> Any:
        """Make an exact loader of the training loader; any other becomes Accelerate's own."""
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
        """Prepare as Accelerate does, and keep the model; one in evaluation mode does not change and is not kept."""
        prepared = super().prepare_model(model, device_placement, evaluation_mode, **options)
        return prepared if evaluation_mode else self._kept("model", prepared)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Prepare as Accelerate does, and keep the optimizer."""
        prepared = super().prepare_optimizer(optimizer, device_placement)
        if prepared is not optimizer:
            prepared.optimizer.register_step_post_hook(lambda *_: self._step.optimizer_stepped())
            self._kept("optimizer", prepared.optimizer)
        return prepared

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepare as Accelerate does, with as many steps in every world as in the first one, and keep the scheduler."""
        prepared = super().prepare_scheduler(scheduler)
        if isinstance(prepared, ElasticScheduler):
            return prepared
        exact = ElasticScheduler(prepared, lambda: self._training.data if self._training.has_data else None)
        self._schedulers[self._schedulers.index(prepared)] = exact
        return self._kept("scheduler", exact)

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Keep further objects that have `state_dict` and `load_state_dict`. Call it before `epochs`."""
        super().register_for_checkpointing(*objects)
        for thing in objects:
            self._kept("registered", thing)

    def free_memory(self, *objects: Any) -> Any:
        """Forget what was prepared, as Accelerate does. Raises `ConfigError` once a step was committed."""
        with reporting_config_errors():
            self._training.forget()
        self._source = None
        return super().free_memory(*objects)

    # The training.

    @property
    def elastic(self) -> State:
        """The `elastic.State` of this training: its `step` and `epoch`, and plain values of your own.

        Raises `ConfigError` before `epochs` or `restore`.
        """
        with reporting_config_errors():
            return self._training.state

    def restore(self) -> bool:
        """Resume from the newest step of this job, of whatever world. A collective; `epochs` calls it.

        Call it yourself where the script needs what is restored before its loop. A second call does nothing.

        Returns:
            False if there was nothing, and training begins.
        """
        with reporting_config_errors():
            restored = self._training.restore()
        if self._tracked is not None and self._tracked.step is None:
            self._tracked.resumed(self.elastic.step)
        return restored

    def epochs(self, total: int) -> Iterator[int]:
        """Loop over the epochs that remain; one that was interrupted is entered again, for what is left of it.

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
        """Commit the step that is done. The training loader does it when the loop asks for the next batch.

        Call it where `break` leaves the loop over the batches and that over `epochs`, or to commit before something
        long. In the middle of a step, and a second time, it does nothing.

        Args:
            loss: For the line of progress; without it the last loss that `backward` got.

        Raises:
            SystemExit: A planned change: the step is saved, and this world ends.
        """
        self._step.commit(loss)

    def end_training(self) -> None:
        """Commit and save the last step, then end as Accelerate does."""
        if self._training.restored:
            self.commit()
            self.elastic.finish()
        super().end_training()

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Around a batch: gradients are exchanged, and optimizers step, only with the last batch of a step."""
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

        Raises `ConfigError` if the batch is not the training loader's.
        """
        factor = self._step.weigh(loss) * self.gradient_accumulation_steps
        super().backward(loss if factor == 1 else loss * factor, **kwargs)

    def unscale_gradients(self, optimizer: Any = None) -> None:
        """As Accelerate's; in the middle of a step nothing, since the gradient is not complete."""
        if not self._step.is_incomplete:
            super().unscale_gradients(optimizer)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """As Accelerate's; in the middle of a step nothing is clipped, and it returns the norm so far."""
        if not self._step.is_incomplete:
            return super().clip_grad_norm_(parameters, max_norm, norm_type)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return torch.nn.utils.get_total_norm(gradients, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """As Accelerate's; in the middle of a step nothing is clipped."""
        if not self._step.is_incomplete:
            super().clip_grad_value_(parameters, clip_value)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """As Accelerate's, also for training batches, whose sizes may differ by one: without padding."""
        if not self._step.running:
            return super().gather_for_metrics(input_data, use_gather_object)
        samples = self._training.data.sampler.samples
        return gather_samples(self, input_data, samples, as_objects=use_gather_object)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """As Accelerate's; the training loader itself where its place was restored, which skips what is used.

        Raises `ConfigError` for a training loader that begins at its start.
        """
        if dataloader is not self._training.loader:
            return super().skip_first_batches(dataloader, num_batches)
        if num_batches and not (self._training.resumed or self._states.loaded):
            with reporting_config_errors():
                raise ConfigError(
                    "skip_first_batches of the training loader: how many batches a step has differs from world to "
                    "world; call accelerator.load_state(), which brings the place in the data back, and leave it out"
                )
        return dataloader

    # Trackers.

    def init_trackers(
        self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: dict[str, Any] | None = None
    ) -> None:
        """As Accelerate's; W&B, MLflow and TensorBoard continue the run of earlier generations."""
        tracked = trackers.prepare(self.elastic.step if self._training.restored else None)
        if "mlflow" in [str(getattr(name, "value", name)) for name in self.log_with]:
            tracked.find_mlflow_run()
        super().init_trackers(project_name, config, init_kwargs)
        tracked.attach(self.trackers)
        self._tracked = tracked

    # Checkpoints of Accelerate's own form.

    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **options: Any
    ) -> Path:
        """Save as Accelerate does, and the place in the data: the folder is whole or not there. A collective."""
        with reporting_config_errors():
            return self._states.save(
                output_dir,
                lambda folder: super(ElasticAccelerator, self).save_state(folder, safe_serialization, **options),
            )

    def load_state(self, input_dir: str | os.PathLike[str] | None = None, *args: Any, **options: Any) -> None:
        """Load as Accelerate does, and the place in the data.

        Before the first batch of a process it does nothing if this job has saved a step already: the script that was
        started again continues from there.
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
