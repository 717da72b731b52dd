"""The order of the training data, the size of a step, and the position in the data: the same at every world size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastic.errors import ConfigError
from elastic.train.data.batch import GlobalBatch
from elastic.train.data.sampler import ElasticSampler


class TrainingData:
    """A part of an `elastic.State`: how the first generation splits the data into steps, and how much of it is used.

    Later generations take the samples of a step (`total`) and the seed from here, not from their number of processes
    and their random seed.

    Args:
        sampler: The order of the data. Its batch is replaced.
        per_rank: The largest number of samples that a process takes at once.
        total: The samples of one step over all processes.
        fixed_total: The user chose `total`, which then overrides the restored one.
        nominal: The samples for which Accelerate steps a scheduler once: `batch_size` times
            `gradient_accumulation_steps`.
        drop_last: Leave out the samples at the end of an epoch that do not fill a step.
        own_sampler: The user created the sampler, with its seed or order.
    """

    def __init__(
        self,
        sampler: ElasticSampler,
        *,
        per_rank: int,
        total: int,
        fixed_total: bool,
        nominal: int,
        drop_last: bool,
        own_sampler: bool,
    ) -> None:
        self.sampler = sampler
        self.nominal = nominal
        self.saves = 0
        """The number of checkpoints that `save_state` has numbered."""
        self._per_rank = per_rank
        self._fixed_total = fixed_total
        self._drop_last = drop_last
        self._own_sampler = own_sampler
        self.total = 0
        self._set_total(total)

    @property
    def steps(self) -> int:
        """The number of steps of a whole epoch."""
        whole, rest = divmod(self.sampler.length, self.total)
        return whole + (rest > 0 and not self._drop_last)

    @property
    def weight(self) -> float:
        """The weight of the mean loss of the current batch; see `ElasticSampler.weight`."""
        return self.sampler.weight

    @property
    def completes_step(self) -> bool:
        """Whether the current batch is the last one of its step."""
        return self.sampler.is_last_micro_batch

    # The interface that a State expects of a sampler.

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return self.sampler.seed

    @property
    def consumed(self) -> int:
        """The number of samples of this epoch that were used."""
        return self.sampler.consumed

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, unless it is the current one."""
        self.sampler.set_epoch(epoch)

    def keep(self) -> None:
        """Note that the batches taken so far are committed."""
        self.sampler.keep()

    def steps_left(self, epochs: int) -> int | None:
        """Return the number of steps that remain of this many epochs; None before the first batch."""
        return self.sampler.steps_left(epochs)

    def at_next_loop(self, call: Callable[[], None]) -> None:
        """Set a function that the next loop of this epoch calls once, when it begins."""
        self.sampler.at_next_loop(call)

    def state_dict(self) -> dict[str, Any]:
        """Return the size of a step, the seed, and the position after the batches that the loop has taken."""
        return {"total": self.total, "saves": self.saves, "sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position, at any world size. Raises `ConfigError` if it belongs to other data."""
        place = state["sampler"]
        if not self._own_sampler and place["shuffle"] and place["seed"] != self.sampler.seed:
            self.sampler = ElasticSampler(self.sampler.length, shuffle=self.sampler.shuffle, seed=place["seed"])
        self._set_total(self.total if self._fixed_total else int(state["total"]))
        self.saves = int(state["saves"])
        self.sampler.load_state_dict(place)

    def _set_total(self, total: int) -> None:
        if total < 1 or not isinstance(total, int):
            raise ConfigError(f"ElasticAccelerator(total_batch_size={total!r}): write a number of samples, 1 or more")
        self.total = total
        batch = GlobalBatch(total=total, max_per_rank=self._per_rank, drop_last=self._drop_last)
        batch.bind(self.sampler)
        self.sampler.batch = batch
