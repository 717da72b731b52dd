"""`elastic.ElasticSampler` in `elastic.DataLoader` and in torch's: what is served, and what counts."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, TensorDataset

import elastic
from elastic.errors import ConfigError
from elastic.train.data.permutation import seed_of
from tests.support.epoch_schedules import PHASES, Phase, Served, served


class Numbers(Dataset[int]):
    """Its samples are their own indices. It remembers which were asked for."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        return index


class Sorted:
    """A batch sampler that changes batches and not their order."""

    def __init__(self, batches: Iterable[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield sorted(batch, reverse=True)


class Fours:
    """A batch sampler that makes its batches itself."""

    def __init__(self, indices: Iterable[int]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.indices)
        while batch := list(islice(indices, 4)):
            yield batch


Loader = type[DataLoader[Any]]
Pair = Callable[..., tuple[elastic.ElasticSampler, DataLoader[Any]]]
LOADERS = st.sampled_from([elastic.DataLoader, DataLoader])


def made(
    loader: Loader, length: int, batch_size: int | None, **options: Any
) -> tuple[elastic.ElasticSampler, DataLoader[Any]]:
    """A sampler and its loader."""
    drop_last = options.pop("drop_last", False)
    sampler = elastic.ElasticSampler(length, **options)
    return sampler, loader(Numbers(length), batch_size, sampler=sampler, drop_last=drop_last)


@pytest.fixture(params=[elastic.DataLoader, DataLoader], ids=["elastic", "torch"])
def pair(request: pytest.FixtureRequest) -> Pair:
    return functools.partial(made, request.param)


def of_total(
    loader: Loader, length: int, total: int, most: int | None, rank: int, world: int
) -> tuple[elastic.ElasticSampler, DataLoader[Any]]:
    batch = elastic.GlobalBatch(total=total, max_per_rank=most)
    sampler = elastic.ElasticSampler(length, seed=3, batch=batch, rank=rank, world=world)
    return sampler, loader(Numbers(length), batch.size, sampler=sampler)


def order_of(length: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed_of(seed, epoch))
    order: list[int] = torch.randperm(length, generator=generator).tolist()
    return order


class TestAnyScheduleOfWorlds:
    @given(LOADERS, PHASES, st.integers(0, 90), st.integers(1, 7), st.integers(0, 3))
    def test_every_sample_of_an_epoch_is_committed_once_in_the_order_of_seed_and_epoch(
        self, loader: Loader, phases: Sequence[Phase], length: int, batch_size: int, epoch: int
    ) -> None:
        done = served(
            phases, lambda rank, world: made(loader, length, batch_size, seed=5, rank=rank, world=world), epoch
        )
        assert done.samples == order_of(length, 5, epoch)

    @given(LOADERS, PHASES, st.integers(0, 90), st.integers(1, 20), st.none() | st.integers(1, 6))
    def test_with_a_total_the_steps_are_those_of_an_undisturbed_run(
        self, loader: Loader, phases: Sequence[Phase], length: int, total: int, most: int | None
    ) -> None:
        def run(phases: Sequence[Phase]) -> Served:
            return served(phases, lambda rank, world: of_total(loader, length, total, most, rank, world))

        disturbed = run(phases)
        assert disturbed.samples == order_of(length, 3, 0)
        assert disturbed.steps == run([Phase(1, 0, 0)]).steps

    @settings(max_examples=30)
    @given(LOADERS, PHASES, st.integers(0, 40))
    def test_it_is_exact_without_batches_too(self, loader: Loader, phases: Sequence[Phase], length: int) -> None:
        done = served(phases, lambda rank, world: made(loader, length, None, shuffle=False, rank=rank, world=world))
        assert done.samples == list(range(length))

    @settings(max_examples=30)
    @given(LOADERS, PHASES, st.integers(0, 60), st.integers(1, 5))
    def test_with_drop_last_every_batch_is_full_and_nothing_is_served_twice(
        self, loader: Loader, phases: Sequence[Phase], length: int, batch_size: int
    ) -> None:
        taken: list[int] = []
        saved: dict[str, Any] | None = None
        for phase in phases:
            first: dict[str, Any] = {}
            for rank in range(phase.world):
                sampler, batches = made(
                    loader, length, batch_size, seed=5, rank=rank, world=phase.world, drop_last=True
                )
                if saved is not None:
                    sampler.load_state_dict(saved)
                for _, batch in zip(range(phase.steps), batches, strict=False):
                    assert len(batch) == batch_size
                    taken += batch.tolist()
                assert first in ({}, sampler.state_dict())
                first = sampler.state_dict()
            saved = first
        assert len(set(taken)) == len(taken)


class TestTheOrder:
    def test_it_is_another_one_in_each_epoch_and_with_each_seed(self) -> None:
        orders = {tuple(order_of(50, seed, epoch)) for seed in range(4) for epoch in range(4)}
        assert len(orders) == 16

    def test_it_is_the_same_on_every_machine(self, pair: Pair) -> None:
        sampler, loader = pair(6, 6, seed=1)
        assert [batch.tolist() for batch in loader] == [[1, 3, 0, 2, 4, 5]]
        sampler.set_epoch(1)
        assert [batch.tolist() for batch in loader] == [[4, 3, 0, 2, 1, 5]]

    def test_without_shuffle_it_is_that_of_the_dataset(self, pair: Pair) -> None:
        _, loader = pair(5, 2, shuffle=False)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]

    @pytest.mark.parametrize("kind", [list, tuple, numpy.array, torch.tensor])
    def test_an_order_of_ones_own_may_repeat_and_leave_out(self, pair: Pair, kind: Any) -> None:
        sampler, loader = pair(100, 2, order=lambda epoch: kind([7, 7, 90 + epoch]), rank=0, world=1)
        assert [batch.tolist() for batch in loader] == [[7, 7], [90]]
        assert (sampler.finished, sampler.length) == (True, 3)
        sampler.set_epoch(4)
        assert [batch.tolist() for batch in loader] == [[7, 7], [94]]

    def test_what_is_consumed_is_not_touched_again(self) -> None:
        data = Numbers(20)
        sampler = elastic.ElasticSampler(data, seed=2)
        sampler.load_state_dict({"epoch": 0, "consumed": 16, "seed": 2, "length": 20, "shuffle": True})
        assert [batch.tolist() for batch in DataLoader(data, 2, sampler=sampler)] == [data.asked[:2], data.asked[2:]]
        assert data.asked == order_of(20, 2, 0)[16:]

    def test_ten_million_samples_take_their_tensor_and_no_list(self) -> None:
        sampler = elastic.ElasticSampler(10_000_000, rank=3, world=8)
        loop = iter(DataLoader(range(10_000_000), 4, sampler=sampler))  # type: ignore[arg-type]  # It has indices.
        assert len(next(loop)) == 4
        assert sampler._order._built is not None
        order = sampler._order._built[1]
        assert isinstance(order, torch.Tensor)
        assert order.nbytes == 80_000_000


class TestWhatCounts:
    def test_a_batch_counts_when_the_loop_has_it(self, pair: Pair) -> None:
        sampler, loader = pair(10, 2, rank=0, world=2)
        seen = [sampler.consumed]
        seen += [sampler.consumed for _ in loader]
        assert seen == [0, 4, 8, 10]
        assert sampler.finished

    def test_a_step_whose_micro_batches_are_not_all_taken_does_not_count(self) -> None:
        sampler, loader = of_total(elastic.DataLoader, 12, 6, 2, 0, 1)
        assert [(sampler.is_last_micro_batch, sampler.consumed) for _ in loader] == [
            (False, 0),
            (False, 0),
            (True, 6),
        ] * 1 + [
            (False, 6),
            (False, 6),
            (True, 12),
        ]

    def test_a_loop_that_was_left_goes_on_after_a_commit(self, pair: Pair) -> None:
        sampler, loader = pair(6, 2, shuffle=False)
        for _ in loader:
            sampler.state_dict()
            break
        assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5]]

    def test_a_look_at_the_first_batch_costs_nothing(self, pair: Pair) -> None:
        sampler, loader = pair(6, 2, shuffle=False)
        assert next(iter(loader)).tolist() == [0, 1]
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
        assert sampler.state_dict()["consumed"] == 6

    def test_without_a_commit_each_loop_serves_everything(self, pair: Pair) -> None:
        _, loader = pair(6, 4, shuffle=False)
        assert [len(list(loader)) for _ in range(3)] == [2, 2, 2]

    def test_a_batch_that_was_taken_and_not_committed_is_served_again(self, pair: Pair) -> None:
        sampler, loader = pair(12, 2, shuffle=False)
        used = []
        for _ in range(3):
            for number, batch in enumerate(loader):
                if number == 2:
                    break  # With a batch in hand, as a limit at the head of a loop does.
                used += batch.tolist()
                sampler.keep()
        assert used == list(range(12))

    def test_a_second_loop_over_a_committed_epoch_is_an_error_that_names_the_mend(self, pair: Pair) -> None:
        sampler, loader = pair(4, 2)
        for _ in loader:
            sampler.keep()
        with pytest.raises(ConfigError, match=r"all of epoch 0 has been served; call sampler\.set_epoch\(1\)"):
            list(loader)

    def test_a_restored_epoch_that_was_finished_serves_nothing(self, pair: Pair) -> None:
        sampler, loader = pair(4, 2)
        list(loader)
        other, its_loader = pair(4, 2)
        other.load_state_dict(sampler.state_dict())
        assert other.finished
        assert (len(its_loader), list(its_loader)) == (0, [])

    def test_a_new_epoch_starts_at_its_first_sample_and_the_same_epoch_goes_on(self, pair: Pair) -> None:
        sampler, loader = pair(6, 2)
        next(iter(loader))
        sampler.state_dict()
        sampler.set_epoch(0)
        assert sampler.consumed == 2
        sampler.set_epoch(1)
        assert (sampler.epoch, sampler.consumed, sampler.finished) == (1, 0, False)

    def test_a_loop_that_begins_at_an_epoch_before_the_checkpoints_is_told_so_once(
        self, pair: Pair, capfd: pytest.CaptureFixture[str]
    ) -> None:
        for rank in (1, 0):
            sampler, _ = pair(10, 2, rank=rank, world=2)
            sampler.load_state_dict({**sampler.state_dict(), "epoch": 3})
            for epoch in range(5):
                sampler.set_epoch(epoch)
            if rank == 1:
                assert not capfd.readouterr().err
        lines = capfd.readouterr().err.splitlines()
        assert len(lines) == 1
        assert "epoch 0 starts, but the checkpoint was in epoch 3; loop over" in lines[0]
        sampler.load_state_dict({**sampler.state_dict(), "epoch": 3})
        sampler.set_epoch(4)
        assert not capfd.readouterr().err

    def test_the_count_stays_when_the_loaders_iterator_is_gone_and_it_goes_at_once(self, pair: Pair) -> None:
        sampler, loader = pair(10, 2)
        loop = iter(loader)
        next(loop)
        gone = weakref.ref(loop)
        gc.disable()
        try:
            del loop
            assert gone() is None
        finally:
            gc.enable()
        assert sampler.state_dict()["consumed"] == 2

    def test_a_loop_that_goes_on_after_a_restore_is_an_error(self, pair: Pair) -> None:
        sampler, loader = pair(8, 2)
        loop = iter(loader)
        next(loop)
        sampler.load_state_dict(sampler.state_dict())
        with pytest.raises(ConfigError, match="leave the loop first"):
            next(loop)


class TestWhoAsks:
    def test_a_batch_sampler_within_a_loader_without_batches_is_seen(self) -> None:
        sampler = elastic.ElasticSampler(7, shuffle=False, rank=1, world=2)
        loader = DataLoader(Numbers(7), batch_size=None, sampler=BatchSampler(sampler, 2, False))
        assert [(batch, sampler.consumed) for batch in loader] == [([2, 3], 4), ([6], 7)]

    def test_who_is_not_seen_must_count_by_hand(self) -> None:
        sampler = elastic.ElasticSampler(7, shuffle=False, rank=1, world=2)
        assert list(sampler) == [1, 3, 5, 6]
        with pytest.raises(ConfigError, match=r"call sampler\.advance\(1\) for each batch"):
            sampler.state_dict()
        sampler.advance(2)
        assert sampler.state_dict()["consumed"] == 4

    def test_who_counts_by_hand_is_believed_as_where_something_takes_batches_ahead_of_the_loop(self) -> None:
        sampler, loader = made(DataLoader, 6, 2)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            ahead = iter(list(loader))
            for _ in ahead:
                sampler.advance()
                break
            assert sampler.state_dict()["consumed"] == 2

    def test_a_batch_sampler_of_ones_own_takes_whole_batches_and_is_counted_by_hand(self) -> None:
        sampler = elastic.ElasticSampler(17, shuffle=False, rank=1, world=2)
        loader = DataLoader(Numbers(17), batch_sampler=Sorted(BatchSampler(sampler, 4, False)))
        seen = []
        for batch in loader:
            sampler.advance()
            seen.append((batch.tolist(), sampler.state_dict()["consumed"]))
        assert seen == [([7, 6, 5, 4], 8), ([12, 11], 13), ([16, 15], 17)]

    @pytest.mark.parametrize("batch", [None, elastic.GlobalBatch(per_rank=4)])
    def test_who_makes_batches_of_single_indices_is_refused_since_those_of_the_ranks_would_not_match(
        self, batch: Any
    ) -> None:
        sampler = elastic.ElasticSampler(17, batch=batch, rank=1, world=2)
        for loader in (
            DataLoader(Numbers(17), batch_sampler=Fours(sampler)),
            DataLoader(Numbers(17), 4, sampler=Fours(sampler)),
        ):
            with pytest.raises(ConfigError, match=r"BatchSampler\(sampler, batch_size, False\), and call"):
                next(iter(loader))

    def test_a_thread_that_takes_batches_ahead_is_noticed_and_counted_by_hand(self) -> None:
        sampler, loader = made(DataLoader, 6, 2, shuffle=False)
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(list, loader).result()
        with pytest.raises(ConfigError, match="a thread prefetches batches for the loop"):
            sampler.state_dict()
        for number, _ in enumerate(ahead):
            sampler.advance()
            assert sampler.state_dict()["consumed"] == 2 * (number + 1)

    def test_who_has_counted_by_hand_once_is_believed_in_later_loops_from_their_start(self) -> None:
        sampler, loader = made(DataLoader, 6, 2)
        next(iter(loader))
        sampler.advance()
        sampler.set_epoch(1)
        assert len(list(loader)) == 3
        assert sampler.state_dict()["consumed"] == 0

    @pytest.mark.parametrize("loader_class", [elastic.DataLoader, DataLoader])
    @pytest.mark.parametrize("batch_size", [1, 2, 5, None])
    @pytest.mark.parametrize("drop_last", [False, True])
    @pytest.mark.parametrize("length", [0, 1, 9, 20, 21])
    def test_the_length_of_the_loader_is_the_number_of_batches_left(
        self, length: int, drop_last: bool, batch_size: int | None, loader_class: Loader
    ) -> None:
        if batch_size is None and drop_last:
            return  # Torch refuses it.
        sampler, loader = made(loader_class, length, batch_size, rank=1, world=3, drop_last=drop_last)
        left = len(loader)
        assert left == len(list(loader)) == len(loader)
        later, its_loader = made(loader_class, length, batch_size, rank=1, world=3, drop_last=drop_last)
        if left > 1:
            next(iter(loader))
            later.load_state_dict(sampler.state_dict())
            assert len(its_loader) == left - 1 == len(list(its_loader))

    def test_the_world_is_that_of_the_environment_when_the_loop_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sampler, loader = made(DataLoader, 4, 1, shuffle=False)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        loop = iter(loader)
        assert next(loop).tolist() == [1]
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert sampler.world == 2
        assert [batch.tolist() for batch in loop] == [[3]]


class TestMistakes:
    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"length": 8}, "made with length 8, but this run has 6"),
            ({"seed": 4}, r"made with seed 4, but this run has 0, .* write ElasticSampler\(..., seed=4\)"),
            ({"shuffle": False}, "made with shuffle False, but this run has True"),
            ({"consumed": 7}, "7 of 6 samples"),
        ],
    )
    def test_another_order_is_refused_and_changes_nothing(self, pair: Pair, changed: dict[str, Any], said: str) -> None:
        sampler, _ = pair(6, 2)
        before = sampler.state_dict()
        with pytest.raises(ConfigError, match=said):
            sampler.load_state_dict({**before, "epoch": 3, "consumed": 2, **changed})
        assert sampler.state_dict() == before

    def test_an_own_order_that_is_not_the_same_again_is_refused_within_an_epoch(self, pair: Pair) -> None:
        first, loader = pair(6, 2, order=lambda epoch: [5, 4, 3])
        next(iter(loader))
        saved = first.state_dict()
        again, _ = pair(6, 2, order=lambda epoch: [5, 3, 4])
        with pytest.raises(ConfigError, match="order= must return the same for the same epoch"):
            again.load_state_dict(saved)
        again.load_state_dict({**saved, "consumed": 3})
        assert again.finished

    def test_data_without_a_length_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"generator has no length; .* use elastic\.ElasticStream"):
            elastic.ElasticSampler(number for number in range(3))  # type: ignore[arg-type]

    def test_a_seed_that_is_no_number_is_refused_and_does_not_mean_no_shuffle(self) -> None:
        with pytest.raises(ConfigError, match=r"seed=None\): write a whole number, the same on all ranks"):
            elastic.ElasticSampler(4, seed=None)  # type: ignore[arg-type]

    def test_numbers_of_numpy_are_numbers(self) -> None:
        batch = elastic.GlobalBatch(total=numpy.int64(4))  # type: ignore[arg-type]
        sampler = elastic.ElasticSampler(numpy.int64(6), seed=numpy.int64(3), batch=batch)  # type: ignore[arg-type]
        state = sampler.state_dict()
        assert [type(value) for value in (state["length"], state["seed"], batch.size)] == [int] * 3

    def test_a_loader_that_drops_the_last_batch_cannot_serve_a_total(self) -> None:
        batch = elastic.GlobalBatch(total=4)
        sampler = elastic.ElasticSampler(8, batch=batch)
        with pytest.raises(ConfigError, match=r"write GlobalBatch\(\.\.\., drop_last=True\)"):
            list(DataLoader(Numbers(8), batch.size, sampler=sampler, drop_last=True))

    def test_a_total_without_its_tail_is_served_if_the_batch_says_so(self) -> None:
        batch = elastic.GlobalBatch(total=4, drop_last=True)
        sampler = elastic.ElasticSampler(10, batch=batch, rank=0, world=3)
        assert [len(each) for each in DataLoader(Numbers(10), batch.size, sampler=sampler)] == [2, 2]
        assert sampler.finished

    def test_a_batch_per_rank_is_served_by_a_loader_of_its_size_that_may_drop_the_last_one(self) -> None:
        for drop_last, sizes in ((False, [3, 2]), (True, [3])):
            batch = elastic.GlobalBatch(per_rank=3)
            sampler = elastic.ElasticSampler(10, batch=batch, rank=0, world=2)
            loader = DataLoader(Numbers(10), batch.size, sampler=sampler, drop_last=drop_last)
            assert [len(each) for each in loader] == sizes
            assert sampler.finished

    def test_a_loader_may_hold_more_than_a_share_of_a_total(self) -> None:
        sampler = elastic.ElasticSampler(8, batch=elastic.GlobalBatch(total=4), rank=0, world=2)
        assert [len(each) for each in DataLoader(Numbers(8), 3, sampler=sampler)] == [2, 2]

    def test_without_a_loader_a_batch_is_served_to_who_counts_by_hand(self) -> None:
        sampler = elastic.ElasticSampler(8, shuffle=False, batch=elastic.GlobalBatch(total=4), rank=1, world=2)
        assert list(sampler) == [2, 3, 6, 7]
        sampler.advance(2)
        assert sampler.finished

    def test_what_is_left_for_no_whole_step_counts_as_consumed(self, pair: Pair) -> None:
        sampler, loader = pair(9, 4, drop_last=True)
        sampler.load_state_dict({**sampler.state_dict(), "consumed": 8})
        assert list(loader) == []
        assert sampler.state_dict()["consumed"] == 9

    @pytest.mark.parametrize(("batch", "batch_size"), [({"total": 12}, 5), ({"per_rank": 4}, 5), ({"total": 4}, None)])
    def test_a_batch_size_that_is_not_that_of_the_batch_is_refused(
        self, batch: dict[str, Any], batch_size: int | None
    ) -> None:
        sampler = elastic.ElasticSampler(24, batch=elastic.GlobalBatch(**batch), rank=0, world=2)
        with pytest.raises(ConfigError, match=r"write DataLoader\(batch_size=batch\.size\)"):
            list(DataLoader(Numbers(24), batch_size, sampler=sampler))

    def test_a_rank_without_a_world_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="give both"):
            elastic.ElasticSampler(4, rank=1)
        with pytest.raises(ConfigError, match="rank 2 is not below the world size 2"):
            elastic.ElasticSampler(4, rank=2, world=2)

    def test_a_weight_before_the_first_batch_is_an_error(self, pair: Pair) -> None:
        sampler, loader = pair(4, 2)
        with pytest.raises(ConfigError, match="no batch has been taken yet"):
            _ = sampler.weight
        list(loader)
        assert (sampler.weight, sampler.samples, sampler.is_last_micro_batch) == (1.0, 2, True)


def test_it_knows_how_many_steps_are_left_of_so_many_epochs_once_a_loop_runs() -> None:
    sampler = elastic.ElasticSampler(100, rank=0, world=2)
    assert sampler.steps_left(3) is None
    loader = DataLoader(TensorDataset(torch.arange(100)), sampler=sampler, batch_size=10)
    left = [sampler.steps_left(3) for _ in loader]
    assert left == [14, 13, 12, 11, 10], "five steps in each of three epochs"
