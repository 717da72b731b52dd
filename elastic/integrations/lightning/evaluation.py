"""Splits validation and test data among the ranks: each sample on one rank, and the same number of batches on each.

The ranks need the same number of batches, since DDP sends the buffers of a model at each call, and a metric with
`on_step` and `sync_dist` is reduced in each batch. Each rank evaluates all of a loader that cannot be split like that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, Sampler, SequentialSampler

from elastic.environment import ProcessEnvironment
from elastic.integrations.loader_options import options_of
from elastic.train import report
from elastic.train.data.batch_plan import BatchPlan, BatchRule


class SharedBatches(Sampler[list[int]]):
    """The batches of one rank, of at most `batch_size` samples each."""

    def __init__(self, samples: int, batch_size: int, rank: int, world: int) -> None:
        """Divide the first `samples` samples of a dataset."""
        self.samples = samples
        self._plan = BatchPlan(samples, 0, world, BatchRule(per_rank=batch_size))
        self._rank = rank

    @property
    def divides(self) -> bool:
        """Whether each rank gets a sample in each batch."""
        last = self._plan.steps - 1
        return last >= 0 and self._plan.samples(last) >= self._plan.world

    def __len__(self) -> int:
        """Return the number of batches, the same on all ranks."""
        return self._plan.batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in range(self._plan.batches):
            yield list(self._plan.micro_batch(batch, self._rank).positions)


class EvaluationShares:
    """Splits the loaders of an evaluation among the ranks, for `share_evaluation`."""

    def __init__(self, place: ProcessEnvironment) -> None:
        """`place` has the rank and the world size."""
        self._rank, self._world = place.rank, place.world_size
        self._said: set[str] = set()

    def share_of(self, loader: Any, stage: str, limit: int | float) -> Any:
        """Return the loader of this rank's share, or `loader` if it cannot be split.

        `stage` is "val" or "test". `limit` is Lightning's `limit_val_batches` or `limit_test_batches`. A number of
        batches refers to the whole dataset, so the same samples are evaluated at every world size.
        """
        if self._world == 1:
            return loader
        reason = self.why_whole(loader, stage, limit)
        if reason:
            self._say(f"each of the {self._world} ranks evaluates all of the {stage} data: {reason}")
            return loader
        batches = self._batches(loader, limit)
        return torch.utils.data.DataLoader(loader.dataset, batch_sampler=batches, **options_of(loader, "generator"))

    def why_whole(self, loader: Any, stage: str, limit: int | float) -> str:
        """Return why each rank has to evaluate all of the data; "" if the ranks can split it."""
        reason = _not_sequential(loader)
        if reason:
            return reason
        if isinstance(limit, float) and limit != 1.0:
            return f"with limit_{stage}_batches={limit} the samples depend on the world size; use a whole number"
        batches = self._batches(loader, limit)
        if batches.samples < self._world:
            return f"it has fewer samples ({batches.samples}) than ranks"
        if not batches.divides:
            return f"the ranks cannot split {batches.samples} batches of 1 sample evenly; use a batch_size of 2 or more"
        return ""

    def _batches(self, loader: Any, limit: int | float) -> SharedBatches:
        size = int(loader.batch_sampler.batch_size)
        samples = len(loader.sampler)
        if loader.batch_sampler.drop_last:
            samples -= samples % size
        if isinstance(limit, int):
            samples = min(samples, limit * size)
        return SharedBatches(samples, size, self._rank, self._world)

    def _say(self, line: str) -> None:
        if self._rank == 0 and line not in self._said:
            self._said.add(line)
            report.log_to_agent(line, warn=True)


def _not_sequential(loader: Any) -> str:
    """Return why a loader is not one of torch's that reads a dataset in order; "" if it is."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        return f"the loader is a {type(loader).__name__}, not torch's DataLoader"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset, which has no numbered samples"
    if type(loader).__iter__ is not torch.utils.data.DataLoader.__iter__:
        return f"{type(loader).__name__} overrides __iter__"
    if type(loader.batch_sampler) is not BatchSampler:
        return "the loader uses a custom batch_sampler, or none"
    if type(loader.sampler) is not SequentialSampler:
        return f"{type(loader.sampler).__name__} does not read the dataset in order; leave out sampler and shuffle"
    return ""
