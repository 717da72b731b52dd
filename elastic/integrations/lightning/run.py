"""One fit in one generation: where it resumes, when it commits its steps, and what it saves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.trainer.states import TrainerFn

from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.integrations.lightning.checkpoint_io import STEP, FencedCheckpointIO, Published
from elastic.integrations.lightning.data import ExactLoaders, takes_iterator
from elastic.integrations.lightning.strategy import ElasticDDPStrategy
from elastic.script.error_report import reporting_config_errors
from elastic.train import report
from elastic.train.comm import byte_collectives
from elastic.train.process_group.topology import current_topology
from elastic.train.state import State
from elastic.train.statedict import parts, rng

FILES: Final = "lightning"
"""The directory in the job's directory for the files of a ModelCheckpoint that has no dirpath."""
UNUSED: Final = (
    "hyper_parameters",
    "hparams_name",
    "hparams_type",
    "datamodule_hyper_parameters",
    "datamodule_hparams_name",
)
"""Parts of a Lightning checkpoint that `Trainer.fit` does not read. They may hold anything."""

_decode = msgspec.json.Decoder(Published | None)


class _Kept:
    """A part of `elastic.State` that a function returns; after a restore it is kept until Lightning requests it."""

    def __init__(self, take: Callable[[], dict[str, Any]]) -> None:
        self.restored: dict[str, Any] = {}
        self._take = take

    def state_dict(self) -> dict[str, Any]:
        return self._take()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state


class Run(Callback):
    """Commits each step to `elastic.State` before the next batch is fetched.

    At that point the rest of the step is complete: callbacks, logging, validation, files of ModelCheckpoint.
    """

    def __init__(self, place: ProcessEnvironment, *, every: int | None, memory_every: int | None) -> None:
        """`every` and `memory_every` are those of `elastic.State.commit`."""
        self.resuming = False
        """Whether the state in memory is restored, and this generation has not fetched a batch yet."""
        self.resumes_at = 0
        """Lightning's global step at which training resumes."""
        self._place = place
        self._every = every
        self._memory_every = memory_every
        self._trainer: Any = None
        self._data: ExactLoaders
        self._io: FencedCheckpointIO
        self._state: State | None = None
        self._model = _Kept(self._take_model)
        self._training = _Kept(self._take_training)
        self._rest: dict[str, Any] = {}
        self._checked = False
        self._committed = -1
        self._loss: Any = None
        self._random: dict[str, Any] | None = None
        self._restored: dict[str, Any] = {}
        self._loaders: Any = None
        self._sigterm: Any = signal.SIG_DFL

    def connect(self, trainer: Any, data: ExactLoaders, io: FencedCheckpointIO) -> None:
        """Set the trainer of this run. The trainer calls it once it is created."""
        self._trainer, self._data, self._io = trainer, data, io

    # Around Trainer.fit

    def begin(self, model: Any, ckpt_path: Any) -> Any:
        """Restore the newest state of the job, and return Lightning's `ckpt_path`: `STEP`, a file, or the given one."""
        trainer = self._trainer
        self._sigterm = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
        with reporting_config_errors():
            self._refuse(model)
            if trainer.fast_dev_run:
                return ckpt_path
            self._state = State(model=self._model, training=self._training, committed=-1)
        restored = self._state.restore()
        self._committed = self._state.committed
        file = self._newest_file()
        if file is not None and file.committed > self._committed:
            report.log_to_agent(f"training resumes from {file.path}: there is no newer step")
            self.resumes_at = file.committed
            return file.path
        if not restored:
            return ckpt_path
        self.resuming = True
        self.resumes_at = max(self._committed, 0)
        self._random = rng.capture()
        return STEP

    def end(self) -> None:
        """Commit the last step, and save it to disk if `every` is set."""
        self.resuming = False
        if self._state is not None:
            self.commit()
            self._state.finish()

    def restored_checkpoint(self) -> dict[str, Any]:
        """Return the checkpoint that `capture` returned in the previous generation."""
        return {"state_dict": self._model.restored, **self._training.restored}

    @property
    def committed(self) -> int:
        """Lightning's global step as of the last commit; -1 before the first one."""
        return self._committed

    def before_fetch(self) -> None:
        """Commit the previous step, if there was one. Called between two batches."""
        trainer = self._trainer
        if trainer.train_dataloader is not self._loaders:
            self._activate()
        if self._restored:
            trainer.accumulate_grad_batches = self._restored.pop("accumulate")
            if not self._data.places()[0]["consumed"]:  # Before the DataLoader draws its seed for this epoch.
                self._restore_random()
            self._restored = self._model.restored = self._training.restored = {}
            trainer.fit_loop.on_iteration_done()  # Otherwise ReduceLROnPlateau makes no step at the end of this epoch.
        self.resuming = False
        self.commit()

    def commit(self) -> None:
        """Commit the steps since the last commit. Ends the process if a planned stop is requested."""
        trainer = self._trainer
        if self._state is None or self._loaders is None or trainer.global_step == max(self._committed, 0):
            return
        self._committed = self._state.committed = trainer.global_step
        self._state.commit(every=self._every, memory_every=self._memory_every, loss=self._loss, total=self._total())

    # Lightning calls these.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give each ModelCheckpoint without a directory one that is the same in all generations.

        LightningCLI's configuration file exists from the second generation on; it is overwritten.
        """
        for callback in trainer.callbacks:
            if isinstance(callback, SaveConfigCallback) and (self._place.generation > 1 or self.resumes_at):
                callback.overwrite = True
        if not self._place.checkpoint_dir:
            return
        for callback in trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(Path(self._place.checkpoint_dir).absolute() / FILES)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the decision to stop early."""
        trainer.should_stop = self.resuming and bool(self._restored.get("should_stop"))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Resume at the position in the data, and restore the SIGTERM handler from before Lightning."""
        if self._place.generation and threading.current_thread() is threading.main_thread():
            # Lightning's handler waits for other ranks, which may have failed.
            signal.signal(signal.SIGTERM, self._sigterm)
        self._activate()
        if self._restored:
            trainer.callback_metrics.update(self._restored["metrics"])
            with reporting_config_errors():
                self._data.go_to(self._restored["places"], self._restore_random)
        elif trainer.fit_loop.restarting and not self._is_at_an_end():
            with reporting_config_errors():
                raise ConfigError(
                    "ckpt_path was written by another Trainer before the end of an epoch, and does not record which "
                    "data it had used; use a file of ModelCheckpoint(save_on_train_epoch_end=True)"
                )
        for name, gradient in self._training.restored.get("gradients", {}).items():
            parameter = pl_module.get_parameter(name)
            parameter.grad = gradient.to(parameter.device)
        self._committed = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Keep the loss for the progress display."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._loss = loss if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that Lightning's checkpoints lack."""
        trainer = self._trainer
        return {
            "samples": self._data.samples,
            "places": self._data.places(),
            "accumulate": trainer.accumulate_grad_batches,
            "should_stop": bool(trainer.should_stop),
            "metrics": dict(trainer.callback_metrics),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it from a checkpoint that Lightning loads. The trainer's global_batch overrides the saved one."""
        if self._trainer.state.fn != TrainerFn.FITTING:
            return
        self._restored = state_dict
        if self._data.samples is None:
            self._data.samples = state_dict["samples"]

    # The state that a commit saves.

    def _take_model(self) -> dict[str, Any]:
        """Capture a checkpoint and return its weights; `_take_training` returns the rest of it."""
        strategy = self._trainer.strategy
        if self._loaders is None or not isinstance(strategy, ElasticDDPStrategy):
            return {}
        captured = strategy.capture(lambda path: self._trainer.save_checkpoint(path, weights_only=False))
        weights: dict[str, Any] = captured.pop("state_dict")
        self._rest = {name: value for name, value in captured.items() if name not in UNUSED}
        if not self._checked:
            self._checked = True
            self._check_plain()
        return weights

    def _take_training(self) -> dict[str, Any]:
        rest, self._rest = self._rest, {}
        module = self._trainer.lightning_module
        if rest and not module.automatic_optimization:  # Gradients may wait for an optimizer's turn.
            rest["gradients"] = {
                name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None
            }
        return rest

    def _check_plain(self) -> None:
        """Raise `ConfigError` for values that could not be loaded again, such as from a script's on_save_checkpoint."""
        with reporting_config_errors():
            for name, value in self._rest.items():
                try:
                    parts.plain(name, value)
                except ConfigError as error:
                    raise ConfigError(
                        f"{str(error).removeprefix('elastic.State: ')} (in the entry {name!r} of Lightning's "
                        "checkpoint, from state_dict or on_save_checkpoint of the module, data module or a callback)"
                    ) from error

    def _activate(self) -> None:
        self._loaders = self._trainer.train_dataloader
        with reporting_config_errors():
            self._data.activate(self._loaders, self._trainer.num_training_batches)

    def _is_at_an_end(self) -> bool:
        """Whether the restored loops are just after the last batch of an epoch that is as long as this one."""
        loop = self._trainer.fit_loop
        is_last = bool(loop.epoch_loop.batch_progress.is_last_batch)
        return is_last and loop.batch_idx == self._trainer.num_training_batches - 1

    def _restore_random(self) -> None:
        if self._random is not None:
            rng.restore(self._random)
            self._random = None

    def _total(self) -> int | None:
        """Return the total number of commits, if Lightning knows it; with manual optimization it does not."""
        trainer = self._trainer
        if not trainer.lightning_module.automatic_optimization or trainer.max_epochs is None:
            return None
        total = trainer.max_steps
        if trainer.max_epochs >= 0 and trainer.num_training_batches != float("inf"):
            in_epochs = trainer.max_epochs * -(-int(trainer.num_training_batches) // trainer.accumulate_grad_batches)
            total = in_epochs if total < 0 else min(total, in_epochs)
        return total if total > 0 else None

    def _newest_file(self) -> Published | None:
        """Return the newest file of ModelCheckpoint, the same on all ranks."""
        if os.environ.get("ELASTIC_RESTORE_STEP"):
            return None
        place = current_topology()
        message = msgspec.json.encode(self._io.published()) if place.rank == 0 else None
        file = _decode.decode(byte_collectives.broadcast(message, 0, place.group))
        if file is None:
            return None
        missing = b"" if os.path.isfile(file.path) else b"missing"
        return None if any(byte_collectives.gather(missing, place.group)) else file

    def _refuse(self, model: Any) -> None:
        """Raise `ConfigError` for callbacks and steps that cannot be exact."""
        if self._state is not None:
            raise ConfigError(
                "trainer.fit() was called twice; put the second fit in another script or raise max_epochs"
            )
        for callback in self._trainer.callbacks:
            if isinstance(callback, BatchSizeFinder | LearningRateFinder):
                raise ConfigError(
                    f"{type(callback).__name__} runs trial steps; run it in a separate script, and write the result "
                    "into this one"
                )
        if takes_iterator(model.training_step):
            raise ConfigError("training_step(dataloader_iter) fetches its own batches; write training_step(batch)")
