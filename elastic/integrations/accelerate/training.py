"""One training: its parts, its data, and after the restore its `elastic.State`."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from elastic._text import counted
from elastic.errors import ConfigError
from elastic.integrations.accelerate.training_data import TrainingData
from elastic.train import report
from elastic.train.state import State


class Training:
    """The parts of a training, which are restored together, once.

    Args:
        accelerator: The accelerator that prepares the parts.
        total_batch_size: The samples of a step that the user chose, or None.
    """

    def __init__(self, accelerator: Accelerator, total_batch_size: int | None) -> None:
        self.total_batch_size = total_batch_size
        self.loader: Any = None
        """The loader that the training loop reads; None before it is prepared."""
        self.resumed = False
        """Whether the restore found a step to resume from."""
        self._accelerator = accelerator
        self._parts: dict[str, list[Any]] = {}
        self._data: TrainingData | None = None
        self._state: State | None = None

    @property
    def has_data(self) -> bool:
        """Whether a training loader is prepared."""
        return self._data is not None

    @property
    def data(self) -> TrainingData:
        """The order of the data and the position in it. Raises `ConfigError` if no training loader is prepared."""
        if self._data is None:
            raise ConfigError(
                "no training loader is prepared: pass the DataLoader to accelerator.prepare(), together with the "
                "optimizer, or with shuffle=True"
            )
        return self._data

    @property
    def state(self) -> State:
        """The state that is committed. Raises `ConfigError` before the restore."""
        if self._state is None:
            raise ConfigError(
                "accelerator.elastic is not available before accelerator.restore() or accelerator.epochs()"
            )
        return self._state

    @property
    def steps_committed(self) -> int:
        """The number of steps committed in all generations; 0 before the restore."""
        return 0 if self._state is None else self._state.step

    @property
    def restored(self) -> bool:
        """Whether `restore` was called."""
        return self._state is not None

    def parts(self, kind: str) -> list[Any]:
        """Return the prepared or registered objects of a kind: "model", "optimizer", "scheduler" or "registered"."""
        return self._parts.get(kind, [])

    def check_schedulers(self) -> None:
        """Raise `ConfigError` if a scheduler changes the learning rates of an optimizer but would not be restored."""
        if any(hasattr(thing, "get_last_lr") for things in self._parts.values() for thing in things):
            return
        groups = (group for optimizer in self.parts("optimizer") for group in optimizer.param_groups)
        if any("initial_lr" in group for group in groups):  # Set by every scheduler of torch.
            raise ConfigError(
                "a scheduler that changes the learning rate is not prepared: after a restart it would start again from "
                "its initial rate; pass it to accelerator.prepare() or accelerator.register_for_checkpointing()"
            )

    def keep(self, kind: str, thing: Any) -> None:
        """Add an object to the parts. Raises `ConfigError` after the restore."""
        kept = self._parts.setdefault(kind, [])
        if not any(thing is other for other in kept):
            self._require_unrestored(f"a {type(thing).__name__}")
            kept.append(thing)

    def read_from(self, loader: Any, data: TrainingData) -> None:
        """Set the training loader. Raises `ConfigError` after the restore."""
        self._require_unrestored("the training loader")
        self.loader, self._data = loader, data

    def restore(self) -> bool:
        """Resume from the newest step of this job. A collective; a second call does nothing.

        Returns False if there was nothing to resume from.
        """
        if self._state is None:
            data = self.data
            self._check_parts()
            things = {
                name if number == 0 else f"{name}_{number}": thing
                for name, objects in self._parts.items()
                for number, thing in enumerate(objects)
            }
            if self._accelerator.scaler is not None:
                things["scaler"] = self._accelerator.scaler
            state = State(**things, data=data)
            self.resumed = state.restore()
            self._state = state
            self.number_saves()
            self._say_total(data)
        return self.resumed

    def number_saves(self) -> None:
        """Continue the numbering of `save_state` from an earlier generation."""
        if self.data.saves:
            self._accelerator.project_configuration.iteration = self.data.saves

    def forget(self) -> None:
        """Drop all parts. Raises `ConfigError` once a step is committed."""
        if self.steps_committed:
            raise ConfigError(
                "accelerator.free_memory() after a step: a job has one training; start a job for each "
                "training, or leave out free_memory()"
            )
        self._parts, self.loader, self._data, self._state = {}, None, None, None

    def _check_parts(self) -> None:
        for kind in ("model", "optimizer"):
            if not self.parts(kind):
                raise ConfigError(f"no {kind} is prepared: pass it to accelerator.prepare()")
        modules = (thing for thing in (*self.parts("model"), *self.parts("registered")) if hasattr(thing, "parameters"))
        parameters = {id(parameter) for module in modules for parameter in module.parameters()}
        groups = (group for optimizer in self.parts("optimizer") for group in optimizer.param_groups)
        if any(id(parameter) not in parameters for group in groups for parameter in group["params"]):
            raise ConfigError(
                "an optimizer changes parameters of a model that is not prepared: after a restart the model would "
                "start again from its initial weights; pass it to accelerator.prepare()"
            )

    def _require_unrestored(self, what: str) -> None:
        if self._state is not None:
            raise ConfigError(
                f"{what} is prepared or registered after accelerator.epochs() or accelerator.restore(), so its state "
                "is not restored; prepare or register it before"
            )

    def _say_total(self, data: TrainingData) -> None:
        accelerator = self._accelerator
        chosen = self.total_batch_size is not None or accelerator.split_batches
        if accelerator.is_main_process and not (chosen or self.resumed):
            report.log_to_agent(
                f"ElasticAccelerator: each step takes {data.total} samples at any world size (computed for "
                f"{counted(accelerator.num_processes, 'process', 'processes')}); to fix this in the script, pass "
                f"total_batch_size={data.total}"
            )
