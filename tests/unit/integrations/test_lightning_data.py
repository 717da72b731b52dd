"""Which of a script's training loaders can be exact, what becomes of them, and what is said of the others."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

import elastic
from elastic import environment
from elastic.errors import ConfigError
from tests.support.frameworks import needs

pytestmark = needs("lightning")

if importlib.util.find_spec("lightning"):
    from elastic.integrations.lightning.data import ExactLoaders

DATA = TensorDataset(torch.arange(50))


class Lines(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(50))


def training(samples: int | None = 12, limit: int | None = None, fetched: list[int] | None = None) -> Any:
    place = environment.read({key: text for key, text in os.environ.items() if key not in ("RANK", "WORLD_SIZE")})
    count = [] if fetched is None else fetched
    return ExactLoaders(place, samples=samples, limit=limit, seed=3, before_fetch=lambda: count.append(1))


def batches(loader: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


def served(loader: Any) -> list[int]:
    return [number for batch in batches(loader) for number in batch]


def test_a_sequential_loader_serves_its_order_in_batches_of_all_ranks() -> None:
    loader = training().exact(DataLoader(DATA, batch_size=4))
    assert len(loader) == 5
    assert served(loader) == list(range(50))


def test_a_shuffled_loader_serves_each_sample_once_in_the_order_of_the_seed() -> None:
    first, second = (served(training().exact(DataLoader(DATA, batch_size=4, shuffle=True))) for _ in range(2))
    assert first == second != list(range(50))
    assert sorted(first) == list(range(50))


def test_a_distributed_sampler_gives_its_seed_and_whether_it_shuffles() -> None:
    sampler: Any = DistributedSampler(DATA, num_replicas=2, rank=0, shuffle=False, seed=7)
    loader = training().exact(DataLoader(DATA, batch_size=4, sampler=sampler))
    assert loader.order.seed == 7
    assert served(loader) == list(range(50))


def test_drop_last_leaves_out_the_tail() -> None:
    loader = training().exact(DataLoader(DATA, batch_size=4, drop_last=True))
    assert (len(loader), len(served(loader))) == (4, 48)


def test_without_a_given_batch_it_is_the_loaders_times_the_ranks() -> None:
    data = training(samples=None)
    data.exact(DataLoader(DATA, batch_size=8))
    assert data.samples == 8


def test_options_of_the_scripts_loader_are_kept() -> None:
    loader = training().exact(DataLoader(DATA, batch_size=4, num_workers=2, collate_fn=list, persistent_workers=True))
    assert (loader.num_workers, loader.collate_fn, loader.persistent_workers) == (2, list, True)


def test_an_order_of_the_scripts_own_is_served() -> None:
    order = [5, 3, 1]
    sampler = elastic.ElasticSampler(DATA, order=lambda epoch: order, batch=elastic.GlobalBatch(total=2))
    assert batches(training(samples=None).exact(elastic.DataLoader(DATA, sampler=sampler))) == [[5, 3], [1]]


def test_a_place_is_resumed_in_the_middle_of_an_epoch_whose_length_stays() -> None:
    data = training()
    loader = data.exact(DataLoader(DATA, batch_size=4))
    data.activate(loader, 5)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    places = data.places()
    again = training()
    left = again.exact(DataLoader(DATA, batch_size=4))
    again.activate(left, 5)
    again.go_to(places, lambda: None)
    assert len(left) == 5
    assert served(left) == list(range(24, 50))


def test_it_is_called_before_each_fetch_and_only_for_the_first_loader() -> None:
    fetched: list[int] = []
    data = training(fetched=fetched)
    loaders = {"a": data.exact(DataLoader(DATA, batch_size=4)), "b": data.exact(DataLoader(DATA, batch_size=4))}
    data.activate(loaders, 5)
    for loader in loaders.values():
        next(iter(loader))
    assert len(fetched) == 1


def test_a_batch_is_cut_at_the_loaders_batch_size_or_at_the_given_limit() -> None:
    for limit, parts in ((None, 3), (6, 2), (12, 0)):
        data = training(limit=limit)
        loader = data.exact(DataLoader(DATA, batch_size=4))
        data.activate(loader, 5)
        batch = next(iter(loader))
        assert len(data.parts(batch)) == parts


REFUSED: dict[str, tuple[Any, str]] = {
    "an iterable dataset": (lambda: DataLoader(Lines(), batch_size=4), "IterableDataset"),
    "a list": (lambda: [1, 2], "list"),
    "a subset": (lambda: DataLoader(DATA, batch_size=4, sampler=SubsetRandomSampler([1, 2])), "SubsetRandomSampler"),
    "single samples": (lambda: DataLoader(DATA, batch_size=None), "batch_size=None"),
    "a batch sampler": (
        lambda: DataLoader(DATA, batch_sampler=type("Mine", (BatchSampler,), {})(SequentialSampler(DATA), 4, False)),
        "Mine",
    ),
    "a batch that grows with the world": (
        lambda: elastic.DataLoader(DATA, 4, sampler=elastic.ElasticSampler(DATA)),
        "GlobalBatch",
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_a_loader_that_cannot_be_exact_is_refused(what: str) -> None:
    make, named = REFUSED[what]
    with pytest.raises(ConfigError, match=named):
        training().exact(make())


@pytest.mark.parametrize(
    ("lengths", "drop_last", "named"), [((50, 30), True, "min_size"), ((50, 52), False, "drop_last")]
)
def test_loaders_that_cannot_be_exact_together_are_refused(
    lengths: tuple[int, int], drop_last: bool, named: str
) -> None:
    data = training()
    loaders = [
        data.exact(DataLoader(TensorDataset(torch.arange(length)), batch_size=4, drop_last=drop_last))
        for length in lengths
    ]
    with pytest.raises(ConfigError, match=named):
        data.activate(loaders, max(map(len, loaders)))
