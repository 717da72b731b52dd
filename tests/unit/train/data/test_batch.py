"""`elastic.GlobalBatch`: sizes in any world, weights, accumulation and learning rates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
    StepLR,
)
from torch.utils.data import DataLoader

import elastic
from elastic.errors import ConfigError
from elastic.train.data.batch import GlobalBatch


def bound(world: int, rank: int = 0, **values: Any) -> tuple[GlobalBatch, elastic.ElasticSampler]:
    """A batch with a sampler of 24 samples."""
    batch = elastic.GlobalBatch(**values)
    return batch, elastic.ElasticSampler(24, shuffle=False, batch=batch, rank=rank, world=world)


class TestSizes:
    @pytest.mark.parametrize(("world", "most", "size"), [(1, None, 16), (3, None, 6), (3, 4, 4), (3, 6, 6), (32, 4, 1)])
    def test_a_total_is_the_same_in_every_world_and_the_size_is_what_a_rank_holds(
        self, world: int, most: int | None, size: int
    ) -> None:
        batch, _sampler = bound(world, total=16, max_per_rank=most)
        assert (batch.total, batch.size, batch.world) == (16, size, world)

    def test_with_per_rank_the_total_grows_with_the_world(self) -> None:
        sizes = [(batch.total, batch.size) for batch, _sampler in (bound(1, per_rank=4), bound(3, per_rank=4))]
        assert sizes == [(4, 4), (12, 4)]

    def test_without_a_sampler_the_world_is_that_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert elastic.GlobalBatch(total=16).size == 4

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({}, "either per_rank or total"),
            ({"per_rank": 4, "lr": "cubic", "lr_base": 4}, "write one of linear, sqrt, none"),
            ({"per_rank": 4, "lr": "linear"}, "needs lr_base"),
            ({"per_rank": 4, "lr": "linear", "lr_base": 0}, "lr_base is 0"),
            ({"total": 4, "lr": "linear", "lr_base": 4}, "the global batch never changes"),
        ],
    )
    def test_what_does_not_fit_together_is_refused(self, values: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            elastic.GlobalBatch(**values)

    def test_a_batch_belongs_to_one_sampler(self) -> None:
        batch, sampler = bound(1, total=4)
        with pytest.raises(ConfigError, match="create one for each sampler"):
            elastic.ElasticSampler(8, batch=batch)
        del sampler
        again = elastic.ElasticSampler(8, batch=batch, rank=0, world=2)
        assert batch.world == again.world == 2

    def test_without_a_sampler_there_is_no_weight(self) -> None:
        with pytest.raises(ConfigError, match=r"write ElasticSampler\(dataset, batch=batch\)"):
            elastic.GlobalBatch(total=4).scale_loss(1.0)


class Recorder(torch.nn.Module):
    """A model that says when its gradients are not exchanged, in the way of DDP."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.quiet = True
        yield
        self.quiet = False


class Sharded(torch.nn.Module):
    """The same in the way of FSDP2."""

    quiet = False

    def set_requires_gradient_sync(self, requires: bool) -> None:
        self.quiet = not requires


class TestAStep:
    @pytest.mark.parametrize("world", [1, 2, 3, 5])
    def test_the_weighted_gradients_of_all_ranks_are_that_of_the_mean_over_the_step(self, world: int) -> None:
        x = torch.arange(24, dtype=torch.float64)
        found = torch.zeros(3, dtype=torch.float64)
        for rank in range(world):
            batch, sampler = bound(world, rank, total=10, max_per_rank=2)
            step = 0
            for mine in DataLoader(x, batch.size, sampler=sampler):  # type: ignore[arg-type]  # It has indices.
                found[step] += batch.scale_loss((mine**2).mean()) / world
                step += batch.is_last_micro_batch
        means = [(x[:10] ** 2).mean(), (x[10:20] ** 2).mean(), (x[20:] ** 2).mean()]
        torch.testing.assert_close(found, torch.stack(means), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("model", [Recorder(), Sharded()])
    def test_gradients_are_exchanged_with_the_last_micro_batch_only(self, model: Any) -> None:
        batch, sampler = bound(1, total=6, max_per_rank=2)
        quiet = []
        for _ in DataLoader(range(24), batch.size, sampler=sampler):  # type: ignore[arg-type]  # It has indices.
            with batch.accumulate(torch.nn.Linear(1, 1), model):
                quiet.append(model.quiet)
            assert not model.quiet
        assert quiet == [True, True, False] * 4


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


def sgd(lr: float | torch.Tensor = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


class TestLearningRates:
    @pytest.mark.parametrize(("lr", "expected"), [("linear", [0.1, 0.3]), ("sqrt", [0.1, 0.1 * 3**0.5])])
    def test_a_rule_multiplies_the_rate_once(self, lr: str, expected: list[float]) -> None:
        for world, rate in zip((1, 3), expected, strict=True):
            batch, _sampler = bound(world, per_rank=8, lr=lr, lr_base=8)
            optimizer = sgd()
            batch.apply([optimizer])
            assert batch.apply([optimizer]) == 1.0
            assert rates(optimizer) == [pytest.approx(rate)]

    def test_without_a_rule_nothing_is_touched(self) -> None:
        batch, _sampler = bound(3, per_rank=8)
        optimizer = sgd()
        assert (batch.apply([optimizer]), batch.factor, rates(optimizer)) == (1.0, 1.0, [0.1])

    def test_a_rate_that_is_a_tensor_stays_the_same_tensor(self) -> None:
        batch, _sampler = bound(2, per_rank=8, lr="linear", lr_base=8)
        optimizer = sgd(torch.tensor(0.1, dtype=torch.float64))
        rate = optimizer.param_groups[0]["lr"]
        scheduler = StepLR(optimizer, 5)
        batch.apply([optimizer], [scheduler])
        assert optimizer.param_groups[0]["lr"] is rate
        assert [float(one) for one in (rate, scheduler.base_lrs[0])] == pytest.approx([0.2, 0.2])

    def test_a_tensor_that_two_groups_and_a_scheduler_have_is_scaled_once(self) -> None:
        batch, _sampler = bound(2, per_rank=8, lr="linear", lr_base=8)
        rate = torch.tensor(0.1, dtype=torch.float64)
        optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for _ in range(2)])
        scheduler = StepLR(optimizer, 5)
        scheduler.base_lrs = [rate, rate]
        batch.apply([optimizer], [scheduler])
        rates = [*(group["lr"] for group in optimizer.param_groups), *scheduler.base_lrs]
        assert [float(one) for one in rates] == pytest.approx([0.2] * 4)

    @pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR of torch itself uses it.
    @pytest.mark.parametrize(
        "make",
        [
            lambda optimizer: StepLR(optimizer, 2, 0.5),
            lambda optimizer: ExponentialLR(optimizer, 0.9),
            lambda optimizer: CosineAnnealingLR(optimizer, 20),
            lambda optimizer: OneCycleLR(optimizer, 0.1, 20, cycle_momentum=False),
            lambda optimizer: ChainedScheduler([LinearLR(optimizer, 0.5, 1, 4), ExponentialLR(optimizer, 0.9)]),
            lambda optimizer: SequentialLR(optimizer, [LinearLR(optimizer, 0.5, 1, 4), StepLR(optimizer, 3)], [5]),
        ],
        ids=["step", "exponential", "cosine", "one cycle", "chained", "sequential"],
    )
    def test_over_world_changes_the_rate_is_the_schedules_times_the_factor_of_the_world(self, make: Any) -> None:
        def process(world: int) -> tuple[GlobalBatch, elastic.ElasticSampler, torch.optim.Optimizer, LRScheduler]:
            optimizer = sgd()
            return *bound(world, per_rank=8, lr="linear", lr_base=8), optimizer, make(optimizer)

        plain = sgd()
        plan = make(plain)
        saved: list[dict[str, Any]] = []
        for world in (3, 2, 1, 3, 2):
            batch, _sampler, optimizer, scheduler = process(world)
            parts: list[Any] = [batch, optimizer, scheduler]
            for part, state in zip(parts, saved, strict=bool(saved)):
                part.load_state_dict(state)
            batch.apply([optimizer], [scheduler, scheduler])
            for _ in range(3):
                assert rates(optimizer) == pytest.approx([rate * world for rate in rates(plain)])
                assert scheduler.get_last_lr() == pytest.approx(rates(optimizer))
                for one, its_scheduler in ((optimizer, scheduler), (plain, plan)):
                    one.step()
                    its_scheduler.step()
            saved = [part.state_dict() for part in parts]


def test_the_old_names_work_and_say_the_new_ones() -> None:
    with pytest.warns(DeprecationWarning, match=r"is now elastic\.GlobalBatch\(total, max_per_rank\)"):
        batch = elastic.batch(8, most=2)
    assert batch.rule == elastic.GlobalBatch(8, max_per_rank=2).rule
    sampler = elastic.ElasticSampler(8, batch=batch)
    next(iter(elastic.DataLoader(range(8), sampler=sampler)))  # type: ignore[arg-type]  # It has indices.
    with pytest.warns(DeprecationWarning, match=r"is now GlobalBatch\.scale_loss"):
        assert batch.weigh(1.0) == batch.scale_loss(1.0)
    for thing in (batch, sampler):
        with pytest.warns(DeprecationWarning, match=r"is now \w+\.is_last_micro_batch"):
            assert not thing.last
