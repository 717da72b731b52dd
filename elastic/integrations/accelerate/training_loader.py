"""The training loader that `ElasticAccelerator.prepare` returns: exact batches, on this process's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device

from elastic.integrations.accelerate.training_data import TrainingData
from elastic.integrations.loader_options import options_of
from elastic.train.data.loader import DataLoader


class TrainingLoop(Protocol):
    """What a training loader calls when the loop over it requests batches."""

    def begin(self) -> None:
        """Note that the loop requests its first batch. Raises `ConfigError` if it may not run now."""

    def batch_taken(self) -> None:
        """Note that the loop receives a batch."""

    def batch_done(self) -> None:
        """Note that the loop requests the next batch, so it has finished the current one."""

    def nominal_batches(self) -> int:
        """Return the number of batches of an epoch in the first generation of the job."""


class TrainingLoader(torch.utils.data.DataLoader[Any], DataLoaderStateMixin):
    """A DataLoader that gives each process its share of every step, in as many batches as this world size requires.

    `len(loader)` is the number of optimizer steps of an epoch times `gradient_accumulation_steps`. It is the same at
    every world size, and so are the numbers that a script computes from it.
    """

    def __init__(
        self,
        source: torch.utils.data.DataLoader[Any],
        data: Callable[[], TrainingData],
        loop: TrainingLoop,
        *,
        device: torch.device | None,
        non_blocking: bool,
    ) -> None:
        """`source` is the user's loader, `data` determines its order; with `device` None batches are not moved."""
        # Without `generator`, torch's global generator draws the seeds of workers, and a State saves that one.
        self._options = options_of(source)
        super().__init__(source.dataset, source.batch_size, **self._options)
        self.gradient_state = GradientState()
        self._data = data
        self._loop = loop
        self._device = device
        self._non_blocking = non_blocking
        self._exact: DataLoader[Any] | None = None

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # Torch names a private class.
        self._loop.begin()
        DataLoaderStateMixin.begin(self)
        try:
            for batch in self._served():
                self.end_of_dataloader = self._data().sampler.finished
                self._loop.batch_taken()
                yield (
                    batch
                    if self._device is None
                    else send_to_device(batch, self._device, non_blocking=self._non_blocking)
                )
                self._loop.batch_done()
        finally:
            DataLoaderStateMixin.end(self)

    def __len__(self) -> int:
        return self._loop.nominal_batches()

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: `ElasticAccelerator.epochs` sets the epoch of the order."""

    def _served(self) -> DataLoader[Any]:
        """The wrapped loader, created after the restore, which may have replaced the sampler."""
        if self._exact is None or self._exact.batch_sampler.sampler is not self._data().sampler:  # type: ignore[union-attr]
            self._exact = DataLoader(self.dataset, sampler=self._data().sampler, **self._options)
        return self._exact


def broadcasting_seed(seed: int, broadcast: Callable[[list[int]], Any]) -> int:
    """The seed of rank 0, in 63 bits; other ranks may have different seeds (`set_seed(..., device_specific=True)`)."""
    seeds = [seed & ((1 << 63) - 1)]
    broadcast(seeds)
    return seeds[0]
