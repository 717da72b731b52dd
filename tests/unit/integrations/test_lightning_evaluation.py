"""How the data of validation and tests are divided among the ranks, and which loaders each rank evaluates whole."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from elastic import environment
from tests.support.frameworks import needs

pytestmark = needs("lightning")

if importlib.util.find_spec("lightning"):
    from elastic.integrations.lightning.evaluation import EvaluationShares, SharedBatches


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(50))


def dataset(samples: int) -> TensorDataset:
    return TensorDataset(torch.arange(samples))


def shares(world: int, rank: int = 0) -> Any:
    place = environment.read({key: text for key, text in os.environ.items() if key not in ("RANK", "WORLD_SIZE")})
    return EvaluationShares(dataclasses.replace(place, rank=rank, world_size=world))


def in_world(world: int, loader: Any, limit: int | float = 1.0) -> list[list[list[int]]]:
    """The batches of each rank."""
    loaders = [shares(world, rank).share_of(loader, "val", limit) for rank in range(world)]
    return [[batch[0].tolist() for batch in loader] for loader in loaders]


def served(ranks: list[list[list[int]]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(batch for rank in ranks for batch in rank))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [2, 3, 5, 64])
def test_each_sample_is_served_once_in_as_many_batches_on_each_rank(world: int, size: int) -> None:
    for samples in range(world, 41):
        ranks = in_world(world, DataLoader(dataset(samples), batch_size=size))
        assert served(ranks) == list(range(samples))
        assert len({len(rank) for rank in ranks}) == 1
        assert all(1 <= len(batch) <= size for rank in ranks for batch in rank)


def test_a_shared_loader_knows_how_many_batches_it_has() -> None:
    loader = shares(3).share_of(DataLoader(dataset(50), batch_size=4), "val", 1.0)
    assert len(loader) == len(list(loader)) == 5


def test_single_samples_are_shared_where_the_ranks_divide_them() -> None:
    ranks = in_world(3, DataLoader(dataset(9), batch_size=1))
    assert served(ranks) == list(range(9))
    assert SharedBatches(9, 1, 0, 3).divides
    assert not SharedBatches(10, 1, 0, 3).divides


@pytest.mark.parametrize("world", [1, 2, 3])
def test_drop_last_and_a_number_of_batches_leave_out_the_same_samples_in_every_world(world: int) -> None:
    assert served(in_world(world, DataLoader(dataset(23), batch_size=4, drop_last=True))) == list(range(20))
    limited = in_world(world, DataLoader(dataset(23), batch_size=4), limit=3)
    taken = [rank[:3] for rank in limited]  # As Lightning does.
    assert served(taken) == list(range(12))


def test_options_of_the_scripts_loader_are_kept() -> None:
    loader = shares(2).share_of(DataLoader(dataset(50), batch_size=4, num_workers=2, collate_fn=list), "val", 1.0)
    assert (loader.num_workers, loader.collate_fn) == (2, list)


NOT_SHARED: dict[str, tuple[Any, int | float, str]] = {
    "an iterable dataset": (lambda: DataLoader(Numbers(), batch_size=4), 1.0, "IterableDataset"),
    "a list": (lambda: [1, 2], 1.0, "list"),
    "shuffled": (lambda: DataLoader(dataset(9), batch_size=4, shuffle=True), 1.0, "RandomSampler"),
    "no batches": (lambda: DataLoader(dataset(9), batch_size=None), 1.0, "batch_sampler"),
    "no samples": (lambda: DataLoader(dataset(0), batch_size=4), 1.0, "fewer samples (0)"),
    "fewer samples than ranks": (lambda: DataLoader(dataset(2), batch_size=4), 1.0, "fewer samples (2)"),
    "single samples that ranks do not divide": (lambda: DataLoader(dataset(10), batch_size=1), 1.0, "batch_size of 2"),
    "a share of the batches": (lambda: DataLoader(dataset(9), batch_size=4), 0.5, "limit_val_batches=0.5"),
}


@pytest.mark.parametrize("what", list(NOT_SHARED))
def test_a_loader_that_cannot_be_shared_stays_as_it_is_for_a_reason(what: str) -> None:
    make, limit, reason = NOT_SHARED[what]
    loader = make()
    assert reason in shares(3).why_whole(loader, "val", limit)
    assert shares(3).share_of(loader, "val", limit) is loader


def test_the_only_rank_evaluates_the_loader_of_the_script() -> None:
    loader = DataLoader(dataset(9), batch_size=4)
    assert shares(1).share_of(loader, "val", 1.0) is loader
