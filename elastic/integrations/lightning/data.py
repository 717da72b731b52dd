"""The script's training loaders, made exact: each sample once per epoch, the same batches at every world size."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.integrations.lightning.parts import CannotCut, Part, cut
from elastic.integrations.loader_options import options_of
from elastic.train import report
from elastic.train.data.batch import GlobalBatch
from elastic.train.data.batch_plan import BatchPlan, BatchRule
from elastic.train.data.loader import DataLoader
from elastic.train.data.sampler import ElasticSampler

OURS: Final = (
    "elastic.DataLoader(dataset, sampler=elastic.ElasticSampler(dataset, order=..., "
    "batch=elastic.GlobalBatch(total=...)))"
)


class ExactLoader(DataLoader[Any]):
    """A DataLoader with the length of a whole epoch, which yields the remaining batches of it."""

    def __init__(
        self,
        dataset: Any,
        sampler: ElasticSampler,
        limit: int,
        before_fetch: Callable[[ExactLoader], None],
        **rest: Any,
    ) -> None:
        """A rank computes at most `limit` samples at once. `before_fetch` is called before each batch is fetched."""
        super().__init__(dataset, sampler=sampler, **rest)
        self.order = sampler
        self.limit = limit
        self._before_fetch = before_fetch

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # Torch names a private class.
        batches: Iterator[Any] | None = None
        while True:
            self._before_fetch(self)
            if batches is None:
                batches = super().__iter__()
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch, the same at every world size."""
        return self.epoch_plan.steps

    @property
    def epoch_plan(self) -> BatchPlan:
        """The plan of the steps of a whole epoch."""
        return BatchPlan(self.order.length, 0, 1, self.rule)

    @property
    def rule(self) -> BatchRule:
        """The rule for the size of a batch over all ranks."""
        assert self.order.batch is not None
        return self.order.batch.rule

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch. Lightning sees that this loader can resume; the callback restores it."""
        return self.order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing: Lightning calls it only for loaders that it creates after it has restored its loops."""


class ExactLoaders:
    """The training loaders of a fit.

    `samples` is the size of a batch over all ranks; None until the first loader determines it.
    """

    def __init__(
        self,
        place: ProcessEnvironment,
        *,
        samples: int | None,
        limit: int | None,
        seed: int,
        before_fetch: Callable[[], None],
    ) -> None:
        """A rank computes at most `limit` samples at once; None: the loader's batch size."""
        self.samples = samples
        self._limit = limit
        self._rank, self._world = place.rank, place.world_size
        self._seed = seed
        self._before_fetch = before_fetch
        self._active: list[ExactLoader] = []
        self._warned = False

    def activate(self, loaders: Any, batches: float) -> None:
        """Set the loaders of an epoch of `batches` batches, from `Trainer.train_dataloader`.

        Raises `ConfigError` if several loaders cannot be exact together.
        """
        self._active = list(_flat(loaders))
        if len(self._active) < 2:
            return
        if batches > min(map(len, self._active)):
            raise ConfigError(
                "the training loaders have different lengths, and Lightning would restart the shorter one within an "
                'epoch; use CombinedLoader(loaders, "min_size")'
            )
        if batches and len({loader.epoch_plan.samples(int(batches) - 1) for loader in self._active}) > 1:
            raise ConfigError(
                "the last batches of the training loaders have different sizes, and one loss cannot have two weights; "
                "set drop_last=True for each DataLoader"
            )

    @property
    def weight(self) -> float:
        """Return the weight of the mean loss of this rank's samples in the batch; all loaders have the same."""
        return self._active[0].order.weight

    def places(self) -> list[dict[str, Any]]:
        """Return the position of each loader in its epoch."""
        return [loader.order.state_dict() for loader in self._active]

    def go_to(self, places: Sequence[Mapping[str, Any]], at_next_loop: Callable[[], None]) -> None:
        """Resume at the positions of an earlier generation. `at_next_loop` is called before the first index is used."""
        if len(places) != len(self._active):
            raise ConfigError(
                f"the checkpoint has the positions of {len(places)} training loaders, but this script has "
                f"{len(self._active)}; use the same loaders"
            )
        for loader, place in zip(self._active, places, strict=True):
            loader.order.load_state_dict(place)
        if self._active:
            self._active[0].order.at_next_loop(at_next_loop)

    def parts(self, batch: Any) -> list[Part]:
        """Cut the batch of this rank into parts of at most `limit` samples; [] if it fits or cannot be cut."""
        loader = self._active[0]
        samples = max(1, loader.order.samples)
        if len(self._active) > 1 or samples <= loader.limit:
            return []
        try:
            return cut(batch, samples, loader.limit)
        except CannotCut as error:
            if not self._warned:
                self._warned = True
                report.log_to_agent(
                    f"a batch of {samples} samples is computed at once, not {loader.limit} at a time, because it "
                    f"contains {error}, which cannot be split into samples",
                    warn=True,
                )
            return []

    def exact(self, loader: Any) -> ExactLoader:
        """Return the loader that replaces the script's. Raises `ConfigError` if it cannot be exact."""
        if isinstance(loader, ExactLoader):
            return loader
        _refuse_without_place(loader)
        if isinstance(loader, DataLoader):
            sampler, size = _own_sampler(loader), None
        else:
            sampler, size = None, _batch_size(loader)
        total = self._total(size, sampler)
        if sampler is None:
            shuffle, seed, drop_last = self._order_of(loader)
            batch = GlobalBatch(total=total, drop_last=drop_last)
            sampler = ElasticSampler(loader.dataset, shuffle=shuffle, seed=seed, batch=batch)
        rest = options_of(loader, "generator")
        limit = self._limit or size or -(-total // self._world)
        return ExactLoader(loader.dataset, sampler, limit, self._call_before_fetch, **rest)

    def _total(self, size: int | None, sampler: ElasticSampler | None) -> int:
        """Return the samples of a batch over all ranks: from script or checkpoint, or else those of this world size."""
        if sampler is not None and sampler.batch is not None:
            total = sampler.batch.total
        elif self.samples is not None:
            return self.samples
        else:
            assert size is not None
            total = size * self._world
            self._say(
                f"each batch has {total} samples at any world size (computed as batch_size {size} x {self._world} "
                f"ranks); to fix this in the script, pass global_batch={total}"
            )
        if self.samples not in (None, total):
            raise ConfigError(
                f"a training loader has batches of {total} samples over all ranks, but another one or "
                f"Trainer(global_batch=...) has {self.samples}; use the same number for all"
            )
        self.samples = total
        return total

    def _order_of(self, loader: Any) -> tuple[bool, int, bool]:
        """Return whether torch's sampler shuffles, its seed, and `drop_last`. `ConfigError` for any other sampler."""
        sampler = loader.sampler
        if type(loader.batch_sampler) is not BatchSampler:
            raise ConfigError(f"{type(loader.batch_sampler).__name__} builds its own batches; use {OURS}")
        drop_last = bool(loader.drop_last)
        if type(sampler) is SequentialSampler:
            return False, self._seed, drop_last
        if type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == len(loader.dataset):
            return True, self._seed, drop_last
        if type(sampler) is DistributedSampler:
            return bool(sampler.shuffle), int(sampler.seed), drop_last or bool(sampler.drop_last)
        raise ConfigError(
            f"{type(sampler).__name__} has a custom order, which cannot be restored at another world size; use {OURS}"
        )

    def _call_before_fetch(self, loader: ExactLoader) -> None:
        """Call `before_fetch` for the first loader of a batch, when no loader has fetched the next batch yet."""
        if loader not in self._active[1:]:
            self._before_fetch()

    def _say(self, line: str) -> None:
        if self._rank == 0:
            report.log_to_agent(line)


def _flat(loaders: Any) -> Iterator[ExactLoader]:
    """Return the loaders in dicts, lists and tuples, in the order in which Lightning fetches from them."""
    if isinstance(loaders, ExactLoader):
        yield loaders
    elif isinstance(loaders, Mapping | list | tuple):
        for entry in loaders.values() if isinstance(loaders, Mapping) else loaders:
            yield from _flat(entry)


def _refuse_without_place(loader: Any) -> None:
    """Raise `ConfigError` for a loader that cannot resume in the middle of the data at another world size."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise ConfigError(f"the training loader is a {type(loader).__name__}; use torch's DataLoader, or {OURS}")
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"{type(loader.dataset).__name__} is an IterableDataset, which has no position to resume from; use a "
            "dataset with __len__ and __getitem__, or elastic.ElasticStream in a custom loop"
        )
    if type(loader).__iter__ not in (torch.utils.data.DataLoader.__iter__, DataLoader.__iter__):
        raise ConfigError(f"{type(loader).__name__} overrides __iter__; use torch's DataLoader, or {OURS}")


def _batch_size(loader: Any) -> int:
    if loader.batch_size is None and type(loader.batch_sampler) is not BatchSampler:
        what = "batch_size=None" if loader.batch_sampler is None else type(loader.batch_sampler).__name__
        raise ConfigError(f"the training loader has {what}, which does not define the size of a batch; use {OURS}")
    return int(loader.batch_size or loader.batch_sampler.batch_size)


def _own_sampler(loader: DataLoader[Any]) -> ElasticSampler:
    """Return the sampler of an elastic.DataLoader. `ConfigError` unless it is exact at every world size."""
    source = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    sampler: ElasticSampler = source.sampler  # type: ignore[union-attr]
    rule = sampler.batch.rule if sampler.batch is not None else None
    if rule is None or rule.total is None or rule.max_per_rank is not None:
        raise ConfigError(
            "the sampler of the training loader needs the same batch at every world size: write "
            "batch=elastic.GlobalBatch(total=...), and pass max_per_rank to the Trainer"
        )
    return sampler


def takes_iterator(training_step: Callable[..., Any]) -> bool:
    """Return whether a training_step fetches its batches from Lightning's `dataloader_iter`."""
    return "dataloader_iter" in inspect.signature(training_step).parameters
