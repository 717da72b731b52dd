"""`elastic.DataLoader`: what it yields and counts, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import elastic
from elastic.errors import ConfigError
from elastic.train.data.loader_probe import report_probe

DATA = TensorDataset(torch.arange(10))


def sampled(**options: Any) -> elastic.ElasticSampler:
    return elastic.ElasticSampler(10, shuffle=False, **options)


def test_it_yields_what_torchs_yields_and_counts_what_the_loop_has() -> None:
    ours, theirs = sampled(rank=1, world=2), sampled(rank=1, world=2)
    loaders = elastic.DataLoader(DATA, 2, sampler=ours), DataLoader(DATA, 2, sampler=theirs)
    for (mine,), (its,) in zip(*loaders, strict=True):
        assert torch.equal(mine, its)
        assert ours.consumed == theirs.consumed


def test_it_takes_its_batch_size_from_the_batch_of_its_sampler() -> None:
    batch = elastic.GlobalBatch(total=4, max_per_rank=3)
    loader = elastic.DataLoader(DATA, sampler=sampled(batch=batch))
    assert [len(samples) for (samples,) in loader] == [2, 2, 2, 2, 2]
    assert len(loader) == 5


def test_without_a_size_samples_are_not_batched() -> None:
    loader = elastic.DataLoader(DATA, sampler=sampled())
    assert [sample.item() for (sample,) in loader] == list(range(10))
    assert len(loader) == 10


def test_a_second_loop_over_it_ends_the_first() -> None:
    loader = elastic.DataLoader(DATA, 2, sampler=sampled())
    first, second = iter(loader), iter(loader)
    next(first)
    next(second)
    with pytest.raises(ConfigError, match="another loop was started"):
        next(first)


@pytest.mark.parametrize("name", ["batch_sampler", "shuffle", "in_order"])
def test_an_option_that_the_sampler_decides_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the sampler sets {name}; leave it out"):
        elastic.DataLoader(DATA, 2, sampler=sampled(), **{name: True})


def test_another_sampler_is_refused_with_the_one_to_write() -> None:
    with pytest.raises(
        ConfigError, match=r"sampler is of type range; write sampler=elastic\.ElasticSampler\(dataset\)"
    ):
        elastic.DataLoader(DATA, 2, sampler=range(10))  # type: ignore[arg-type]


def test_it_is_told_once_that_batches_are_counted_by_torchs_internals_and_never_of_ours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    report_probe.cache_clear()
    list(elastic.DataLoader(DATA, 2, sampler=sampled()))
    assert capfd.readouterr().err == ""
    for _ in range(2):
        list(DataLoader(DATA, 2, sampler=sampled()))
    (line,) = capfd.readouterr().err.splitlines()
    assert f"internals of torch {torch.__version__}; elastic.DataLoader does not need them" in line
