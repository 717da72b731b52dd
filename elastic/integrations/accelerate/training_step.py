"""The current step of a training loop: whether it is complete, the weight of a batch in it, and its commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel

from elastic.errors import ConfigError
from elastic.integrations.accelerate.training import Training
from elastic.script.error_report import reporting_config_errors


class TrainingStep:
    """Follows the loop over the training loader, commits its steps, and refuses uses that would make its numbers wrong.

    A step is what all processes do between two updates of the parameters. It begins with a batch, ends when the loop
    requests the batch after its last one, and is committed then.

    Args:
        accelerator: Its `sync_gradients` is set to whether a batch completes a step.
        training: The training whose state is committed.
        checkpoint_every: As `every` of `elastic.State.commit`.
        memory_every: As `memory_every` of `elastic.State.commit`.
    """

    def __init__(
        self, accelerator: Accelerator, training: Training, *, checkpoint_every: int | None, memory_every: int | None
    ) -> None:
        self.begun = False
        """Whether this process has taken a training batch."""
        self._accelerator = accelerator
        self._training = training
        self._checkpoint_every = checkpoint_every
        self._memory_every = memory_every
        self._in_epochs = False
        self._backwards = 0
        """The number of calls of backward() for this batch."""
        self._complete = False
        """Whether the current batch is the last one of a step that is not committed yet."""
        self._stepped = False
        """Whether an optimizer has stepped in this step."""
        self._loss: Any = None
        self._checked = False
        """Whether the schedulers were checked; a script may create them after the restore."""

    @property
    def running(self) -> bool:
        """Whether the innermost running loop is the one over the training loader."""
        loader = self._training.loader
        return loader is not None and self._accelerator.gradient_state.active_dataloader is loader

    @property
    def is_incomplete(self) -> bool:
        """Whether the loop is in the middle of a step: more batches add to the gradient."""
        return self.running and not self._training.data.completes_step

    @property
    def is_done(self) -> bool:
        """Whether a step is complete and not committed. A last batch without a backward pass does not complete it."""
        return self._complete and self._backwards > 0

    @contextmanager
    def in_epochs(self) -> Iterator[None]:
        """Return a context in which training loops may run."""
        self._in_epochs = True
        try:
            yield
        finally:
            self._in_epochs = False

    # Called by the loader.

    def begin(self) -> None:
        """Commit the previous step; raise `ConfigError` for a loop whose position could not be restored."""
        if not self._in_epochs:
            _refuse(
                "a loop over the training loader outside of accelerator.epochs(): its position could not be restored "
                "after a restart; put the loop inside `for epoch in accelerator.epochs(n)`"
            )
        self.commit()  # The previous loop ended with a break.
        self._complete = False

    def batch_taken(self) -> None:
        """Note that the loop has a new batch, to which the next gradients belong."""
        self.begun = True
        self._backwards = 0
        self._complete = self._accelerator.sync_gradients = self._training.data.completes_step

    def batch_done(self) -> None:
        """Commit the step if that was its last batch."""
        if not self._backwards:
            _refuse(
                "accelerator.backward(loss) was not called for a training batch; call it instead of loss.backward(), "
                "at least once for each batch; to skip a batch, call accelerator.backward(loss * 0)"
            )
        self.commit()

    def nominal_batches(self) -> int:
        """Return the number of batches of an epoch in the first generation of the job."""
        training = self._training
        if not (training.total_batch_size or self._accelerator.split_batches or training.restored):
            _refuse(
                "the length of the training loader is not known before accelerator.restore(); call that first, or "
                "use ElasticAccelerator(total_batch_size=...)"
            )
        return training.data.steps * int(self._accelerator.gradient_accumulation_steps)

    # Called for the loop.

    def weigh(self, loss: Any) -> float:
        """Return the weight of the loss of this batch in its step; see `ElasticSampler.weight`."""
        if not self.running:
            _refuse(
                "accelerator.backward() was called outside of a loop over the training loader; the training loader is "
                "the one that shuffles, or the first one that is prepared with the optimizer; for any other gradient "
                "call loss.backward()"
            )
        if self._complete and _keep_gradients(self._training.parts("model")):
            _refuse(
                "the gradient of a complete step is not exchanged with the other processes (no_sync, or LocalSGD); use "
                "`with accelerator.accumulate(model)`, which knows which batch completes a step"
            )
        self._backwards += 1
        self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
        return self._training.data.weight

    def optimizer_stepped(self) -> None:
        """Note that an optimizer has changed its parameters."""
        if self.is_incomplete:
            _refuse(
                "an optimizer stepped in the middle of a step; use the optimizer that accelerator.prepare() returns, "
                "which waits for the last batch"
            )
        self._stepped = True

    def commit(self, loss: Any = None) -> None:
        """Commit the step if it is complete."""
        if not self.is_done:
            return
        self._complete = False
        if not self._stepped and not self._accelerator.optimizer_step_was_skipped and self._has_gradients():
            _refuse(
                "a step is complete, but no optimizer has stepped: manually accumulated gradients would be lost; "
                "use ElasticAccelerator(gradient_accumulation_steps=...) and `with accelerator.accumulate(model)`"
            )
        self._stepped = False
        if not self._checked:
            self._checked = True
            with reporting_config_errors():
                self._training.check_schedulers()
        self._training.state.commit(
            every=self._checkpoint_every,
            memory_every=self._memory_every,
            loss=self._loss if loss is None else loss,
        )

    def _has_gradients(self) -> bool:
        return any(
            parameter.grad is not None
            for optimizer in self._training.parts("optimizer")
            for group in optimizer.param_groups
            for parameter in group["params"]
        )


def _keep_gradients(models: Iterable[Any]) -> bool:
    return any(isinstance(model, DistributedDataParallel) and not model.require_backward_grad_sync for model in models)


def _refuse(text: str) -> None:
    with reporting_config_errors():
        raise ConfigError(text)
