"""Schedulers that take the same number of steps at every world size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from accelerate.scheduler import AcceleratedScheduler

from elastic.errors import ConfigError
from elastic.integrations.accelerate.training_data import TrainingData
from elastic.script.error_report import reporting_config_errors

CREDIT: Final = "elastic_credit"
"""The key, in a scheduler's state, of the samples counted towards its next step."""


class ElasticScheduler(AcceleratedScheduler):
    """Accelerate's wrapper of a scheduler, for steps that are the same at every world size.

    Accelerate steps a scheduler once per process at each optimizer step, since a script computes its length from the
    batches that a single process would take. This class steps it once per `batch_size * gradient_accumulation_steps`
    samples of the step: as often as in the first generation of the job.

    Args:
        wrapped: The scheduler that Accelerate prepared.
        data: Returns the training data; None until a training loader is prepared.
    """

    def __init__(self, wrapped: AcceleratedScheduler, data: Callable[[], TrainingData | None]) -> None:
        super().__init__(
            wrapped.scheduler, wrapped.optimizers, wrapped.step_with_optimizer, split_batches=wrapped.split_batches
        )
        self._data = data
        self._credit = 0

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step the scheduler after an optimizer step, once per nominal batch; in the middle of a step do nothing."""
        data = self._data()
        if data is None:
            super().step(*args, **kwargs)
            return
        if not self.step_with_optimizer:
            self._step_alone(*args, **kwargs)
            return
        if not self.gradient_state.sync_gradients or any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        self._credit += data.total
        while self._credit >= data.nominal:
            self._credit -= data.nominal
            if not self._is_over():
                self.scheduler.step(*args, **kwargs)

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's own state and the samples counted towards its next step."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return {**state, CREDIT: self._credit} if self._credit else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class, or one of the wrapped scheduler alone."""
        self._credit = int(state_dict.get(CREDIT, 0))
        self.scheduler.load_state_dict({name: value for name, value in state_dict.items() if name != CREDIT})

    def _is_over(self) -> bool:
        """Whether a OneCycleLR has made all its steps; another one would raise an error."""
        return bool(self.scheduler.last_epoch >= getattr(self.scheduler, "total_steps", math.inf))

    def _step_alone(self, *args: Any, **kwargs: Any) -> None:
        if not self.gradient_state.sync_gradients:
            with reporting_config_errors():
                raise ConfigError(
                    "scheduler.step() was called in the middle of a step, with step_scheduler_with_optimizer=False: "
                    "the number of batches per step depends on the world size; write `if accelerator.sync_gradients: "
                    "scheduler.step()`"
                )
        self.scheduler.step(*args, **kwargs)
