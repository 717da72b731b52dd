"""`elastic.DataLoader`, which counts the batches of an `ElasticSampler`.

::

    sampler = elastic.ElasticSampler(dataset, shuffle=True, seed=0)
    loader = elastic.DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=4)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

import torch
from torch.utils.data import Dataset

from elastic._text import joined
from elastic.errors import ConfigError
from elastic.train.data.epoch_position import BatchCount, LoaderInfo
from elastic.train.data.sampler import ElasticSampler

Sample = TypeVar("Sample", covariant=True)

OURS: Final = ("batch_sampler", "shuffle", "in_order")
"""Options of torch's DataLoader that the sampler sets."""


class DataLoader(torch.utils.data.DataLoader[Sample]):
    """Torch's DataLoader for an `ElasticSampler`. It yields the same batches as torch's.

    A batch counts as taken when the loop receives it; prefetched batches do not count. `len(loader)` is the number of
    batches that remained of the epoch when the loop started.

    Args:
        dataset: The dataset that the indices of the sampler refer to.
        batch_size: The number of samples in a batch of this rank. Leave it out if the sampler has a `GlobalBatch`,
            which sets it. Without either, the loader yields single samples.
        sampler: An `ElasticSampler`. Pass it to the `State` too, so that its position is saved.
        drop_last: Drop the incomplete last step of an epoch, counted over all ranks. With a fixed total, pass it to
            the `GlobalBatch` instead.
        **options: The other options of torch's DataLoader, such as num_workers, collate_fn, pin_memory,
            prefetch_factor and persistent_workers.

    Raises:
        ConfigError: `sampler` is not an `ElasticSampler`, or an option contradicts it.
    """

    def __init__(
        self,
        dataset: Dataset[Sample],
        batch_size: int | None = None,
        *,
        sampler: ElasticSampler,
        drop_last: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(sampler, ElasticSampler):
            raise ConfigError(
                f"elastic.DataLoader: sampler is of type {type(sampler).__name__}; write "
                "sampler=elastic.ElasticSampler(dataset)"
            )
        if theirs := [name for name in OURS if name in options]:
            raise ConfigError(f"elastic.DataLoader: the sampler sets {joined(theirs)}; leave it out")
        self._batches = _Batches(sampler, batch_size, drop_last=drop_last)
        if batch_size is None and sampler.batch is None:
            super().__init__(dataset, batch_size=None, sampler=self._batches, **options)
        else:
            super().__init__(dataset, batch_sampler=self._batches, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # Torch's return type is a private class.
        count = self._batches.count = BatchCount()
        for batch in super().__iter__():
            count.taken += 1
            yield batch


class _Batches:
    """The index source for torch's DataLoader: a list of indices for each batch of this rank, or single indices."""

    def __init__(self, sampler: ElasticSampler, batch_size: int | None, *, drop_last: bool) -> None:
        self.sampler = sampler
        self.count = BatchCount()
        """The number of batches that the newest loop has taken."""
        self._size = batch_size
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        batches = self.sampler.batches(self._info())
        return batches if self._size or self.sampler.batch else (index for indices in batches for index in indices)

    def __len__(self) -> int:
        return self.sampler.plan(self._info()).batches

    def _info(self) -> LoaderInfo:
        batch = self.sampler.batch
        size = batch.size if self._size is None and batch is not None else self._size
        return LoaderInfo(size, self._drop_last, self.count)
