"""The exact order with DataLoader workers, which fetch ahead of the loop."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import elastic
from elastic.train.data.batch_plan import BatchPlan, BatchRule
from tests.support.epoch_schedules import Phase, Served, Source, served

SCHEDULES = (
    (Phase(2, 2, 1), Phase(1, 3, 0), Phase(3, 1, 3)),
    (Phase(1, 0, 2), Phase(2, 3, 1)),
)
LENGTH = 53
FRESH = torch.multiprocessing.get_context("forkserver")
"""Their parent has one thread. This process has those of whatever ran here before, and a fork of it may crash."""
FRESH.set_forkserver_preload([__name__])
CLEAN: dict[str, Any] = {"multiprocessing_context": FRESH}


class Squares(Dataset[torch.Tensor]):
    """Its samples are made in the workers."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def count_from(start: int, epoch: int) -> Iterable[int]:
    return range(start + epoch, start + epoch + LENGTH)


def sampled(
    rank: int, world: int, *, total: bool, loader_class: type[DataLoader[Any]] = elastic.DataLoader, **options: Any
) -> tuple[Source, Iterable[Any]]:
    batch = elastic.GlobalBatch(total=9, max_per_rank=2) if total else elastic.GlobalBatch(per_rank=3)
    sampler = elastic.ElasticSampler(LENGTH, shuffle=False, batch=batch, rank=rank, world=world)
    loader = loader_class(Squares(), batch_size=batch.size, sampler=sampler, num_workers=2, **{**CLEAN, **options})
    return sampler, loader


sampled_by_torch = functools.partial(sampled, loader_class=DataLoader)


def streamed(rank: int, world: int, *, total: bool, **options: Any) -> tuple[Source, Iterable[Any]]:
    batch = elastic.GlobalBatch(total=9, max_per_rank=2) if total else elastic.GlobalBatch(per_rank=3)
    make = functools.partial(count_from, 0)
    stream = elastic.ElasticStream(make, batch=batch, rank=rank, world=world, **{"num_workers": 2, **CLEAN, **options})
    return stream, stream


@pytest.mark.parametrize("phases", SCHEDULES)
@pytest.mark.parametrize("make", [sampled, sampled_by_torch, streamed])
@pytest.mark.parametrize("total", [False, True])
def test_what_workers_fetched_ahead_and_no_loop_took_is_served_again(
    make: Any, phases: Sequence[Phase], total: bool
) -> None:
    done: Served = served(phases, functools.partial(make, total=total))
    assert done.samples == list(range(LENGTH))


@pytest.mark.parametrize("make", [sampled, sampled_by_torch, streamed])
def test_persistent_workers_serve_the_rest_of_an_epoch_and_the_next_one(make: Any) -> None:
    source, loader = make(1, 2, total=True, persistent_workers=True)
    first: list[int] = []
    for batch in loader:
        first += batch.tolist()[: source.samples]
        if source.consumed == 18:
            source.state_dict()
            break
    for batch in loader:
        first += batch.tolist()[: source.samples]
    source.state_dict()
    assert source.finished
    source.set_epoch(1)
    second = [sample for batch in loader for sample in batch.tolist()[: source.samples]]
    plan = BatchPlan(LENGTH, 0, 2, BatchRule(total=9, max_per_rank=2))
    batches = [plan.micro_batch(number, 1) for number in range(plan.batches)]
    mine = [sample for micro in batches if micro.size for sample in micro.positions]
    assert first == mine
    assert second == [sample + (1 if make is streamed else 0) for sample in mine]


class Shared(IterableDataset[int]):
    """It shares itself among DataLoader workers, as torch's documentation shows."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        mine, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        for number in range(mine, LENGTH, workers):
            assert get_worker_info() is None
            yield number


def collate(samples: list[int]) -> torch.Tensor:
    assert get_worker_info() is not None
    return torch.tensor(samples)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_shares_itself_among_workers_is_served_whole(persistent: bool) -> None:
    stream = elastic.ElasticStream(
        Shared(), batch_size=4, num_workers=2, collate_fn=collate, persistent_workers=persistent, **CLEAN
    )
    for epoch in range(2):
        stream.set_epoch(epoch)
        assert [sample for batch in stream for sample in batch.tolist()] == list(range(LENGTH))


def test_workers_that_are_spawned_make_the_same_stream() -> None:
    stream, loader = streamed(0, 1, total=False, multiprocessing_context="spawn")
    assert [sample for batch in loader for sample in batch.tolist()] == list(range(LENGTH))
    assert stream.finished


def test_batches_that_come_in_no_order_are_refused() -> None:
    _, loader = sampled_by_torch(0, 1, total=False, in_order=False)
    with pytest.raises(elastic.errors.ConfigError, match=r"DataLoader\(in_order=False\)"):
        next(iter(loader))
