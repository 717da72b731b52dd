"""The batches of one rank when every step takes the same samples at every world size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any

from torch.utils.data import Sampler

from elastic.train.data.batch_plan import BatchPlan, BatchRule, MicroBatch
from elastic.train.data.permutation import Permutation


class PlannedBatches(Sampler[list[Any]]):
    """A batch sampler for torch's DataLoader, for a framework that counts the steps and skips batches.

    A step takes `total` samples at every world size, so the position in the data follows from the number of steps.
    A resumed epoch yields an empty list for each batch before its position: the framework skips them, and nothing is
    read.

    Args:
        length: The number of samples of the dataset.
        total: The number of samples of a step, over all ranks.
        batch_size: The largest number of samples that a rank takes at once.
        rank: This process's rank.
        world: The number of ranks.
        seed: Shuffles each epoch, as in `elastic.ElasticSampler`; None keeps the order of the dataset.
        order: `order(epoch)` returns the indices of an epoch, the same on all ranks.
        drop_last: Leave out the samples at the end of an epoch that do not fill a step.

    Raises:
        ConfigError: A number is less than 1.
    """

    def __init__(
        self,
        length: int,
        total: int,
        batch_size: int,
        *,
        rank: int,
        world: int,
        seed: int | None,
        order: Callable[[int], Sequence[Any]] | None = None,
        drop_last: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self.rule = BatchRule(total=total, max_per_rank=batch_size, drop_last=drop_last)
        self.world = world
        self.rank = rank
        self._order = Permutation(length, seed, order)
        self._epoch = 0
        self._place = 0
        self.plan = BatchPlan(self._order.length(0), 0, world, self.rule)

    @property
    def steps(self) -> int:
        """The number of steps of an epoch, the same at every world size."""
        return self.plan.steps

    @property
    def per_step(self) -> int:
        """The number of micro-batches of a step at this world size; the last step of an epoch may have fewer."""
        return self.rule.micro_batches(self.world)

    def begin(self, epoch: int, steps: int) -> None:
        """Let the next loop cover what remains of `epoch` after `steps` steps."""
        self._epoch, self._place = epoch, steps

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of this rank in a step of the epoch, counted from 0."""
        return self.plan.micro_batches(step, self.rank)

    def __iter__(self) -> Iterator[list[Any]]:
        epoch, place = self._epoch, self._place
        yield from repeat([], place * self.per_step)
        for step in range(place, self.steps):
            for micro in self.micro_batches(step):
                yield self._order.take(epoch, micro.positions)

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return self.plan.batches
