"""`elastic.ElasticStream`: samples that can only be read from front to back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

import elastic
from elastic.errors import ConfigError
from tests.support.epoch_schedules import PHASES, Phase, Served, served


def numbers(length: int, **options: Any) -> elastic.ElasticStream:
    """A stream of so many numbers: those of epoch e start at 1000 * e."""
    return elastic.ElasticStream(lambda epoch: iter(range(1000 * epoch, 1000 * epoch + length)), **options)


class TestAnyScheduleOfWorlds:
    @given(PHASES, st.integers(0, 90), st.integers(1, 7), st.integers(0, 3))
    def test_every_sample_of_an_epoch_is_committed_once_in_its_order(
        self, phases: Sequence[Phase], length: int, batch_size: int, epoch: int
    ) -> None:
        def make(rank: int, world: int) -> tuple[elastic.ElasticStream, elastic.ElasticStream]:
            stream = numbers(length, batch_size=batch_size, rank=rank, world=world)
            return stream, stream

        assert served(phases, make, epoch).samples == list(range(1000 * epoch, 1000 * epoch + length))

    @given(PHASES, st.integers(0, 90), st.integers(1, 20), st.none() | st.integers(1, 6))
    def test_with_a_total_the_steps_are_those_of_an_undisturbed_run(
        self, phases: Sequence[Phase], length: int, total: int, most: int | None
    ) -> None:
        def make(rank: int, world: int) -> tuple[elastic.ElasticStream, elastic.ElasticStream]:
            stream = numbers(length, batch=elastic.GlobalBatch(total=total, max_per_rank=most), rank=rank, world=world)
            return stream, stream

        def run(phases: Sequence[Phase]) -> Served:
            return served(phases, make)

        disturbed = run(phases)
        assert disturbed.samples == list(range(length))
        assert disturbed.steps == run([Phase(1, 0, 0)]).steps


class Letters(IterableDataset[str]):
    """The same in every epoch, unless it is told which one it is."""

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[str]:
        return iter("abcde")


class TestWhatIsServed:
    def test_an_iterable_dataset_is_told_the_epoch(self) -> None:
        letters = Letters()
        stream = elastic.ElasticStream(letters, batch_size=2, collate_fn="".join)
        assert list(stream) == ["ab", "cd", "e"]
        stream.set_epoch(4)
        assert list(stream) == ["ab", "cd", "e"]
        assert letters.epochs == [0, 4]

    def test_a_stream_that_can_skip_is_not_read_over(self) -> None:
        class Skips:
            def __iter__(self) -> Iterator[int]:
                raise AssertionError("read from its start")

            def skip(self, samples: int) -> range:
                return range(samples, 7)

        stream = elastic.ElasticStream(Skips(), batch_size=2)
        stream.load_state_dict({"epoch": 0, "consumed": 4, "finished": False})
        assert [batch.tolist() for batch in stream] == [[4, 5], [6]]

    def test_what_collate_fn_makes_is_not_touched(self) -> None:
        stream = numbers(3, batch_size=2, collate_fn=numpy.array)
        assert [type(batch) for batch in stream] == [numpy.ndarray] * 2

    def test_what_can_be_read_once_only_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"a generator can be read only once, .*ElasticStream\(lambda epoch"):
            elastic.ElasticStream((number for number in range(3)), batch_size=2)

    def test_with_drop_last_every_batch_is_full(self) -> None:
        stream = numbers(11, batch_size=2, drop_last=True, rank=1, world=2)
        assert [(batch.tolist(), stream.finished) for batch in stream] == [([2, 3], False), ([6, 7], True)]

    def test_a_batch_that_drops_the_tail_drops_it_of_a_stream_too(self) -> None:
        stream = numbers(7, batch=elastic.GlobalBatch(total=3, drop_last=True))
        assert [batch.tolist() for batch in stream] == [[0, 1, 2], [3, 4, 5]]

    def test_only_what_is_kept_is_collated(self) -> None:
        collated: list[list[int]] = []
        stream = numbers(8, batch_size=2, rank=1, world=2, collate_fn=collated.append)
        assert len(list(stream)) == 2
        assert collated == [[2, 3], [6, 7]]

    def test_the_weights_of_the_batches_just_taken_are_those_of_their_steps(self) -> None:
        batch = elastic.GlobalBatch(total=4, max_per_rank=1)
        stream = numbers(5, batch=batch, rank=1, world=3)
        seen = [(batch.weight, stream.samples, batch.is_last_micro_batch, stream.consumed) for _ in stream]
        assert seen == [(0.75, 1, False, 0), (0.0, 0, True, 4), (0.0, 0, True, 5)]


class TestWhatCounts:
    def test_a_loop_that_was_left_goes_on_after_a_commit_and_else_begins_again(self) -> None:
        stream = numbers(5, batch_size=2)
        assert next(iter(stream)).tolist() == [0, 1]
        assert next(iter(stream)).tolist() == [0, 1]
        assert stream.state_dict() == {"epoch": 0, "consumed": 2, "finished": False}
        assert [batch.tolist() for batch in stream] == [[2, 3], [4]]
        assert stream.state_dict() == {"epoch": 0, "consumed": 5, "finished": True}
        with pytest.raises(ConfigError, match=r"call stream\.set_epoch\(1\)"):
            list(stream)

    def test_a_batch_that_was_taken_and_not_committed_is_served_again(self) -> None:
        stream = numbers(12, batch_size=2)
        used = []
        for _ in range(3):
            for number, batch in enumerate(stream):
                if number == 2:
                    break
                used += batch.tolist()
                stream.keep()
        assert used == list(range(12))

    def test_who_takes_batches_ahead_of_the_loop_counts_by_hand(self) -> None:
        stream = numbers(5, batch_size=2)
        for epoch in range(2):
            stream.set_epoch(epoch)
            seen = []
            taken = list(stream)
            if epoch > 0:  # It counts by hand from the start: what was only taken ahead is not consumed.
                assert stream.state_dict() == {"epoch": epoch, "consumed": 0, "finished": False}
            for _ in taken:
                stream.advance()
                seen.append((stream.samples, *stream.state_dict().values()))
            assert seen == [(2, epoch, 2, False), (2, epoch, 4, False), (1, epoch, 5, True)]
            with pytest.raises(ConfigError, match="once for each batch that the loop receives"):
                stream.advance()

    def test_half_a_step_that_is_counted_by_hand_leaves_the_place_where_it_was(self) -> None:
        stream = numbers(8, batch=elastic.GlobalBatch(total=4, max_per_rank=2))
        places = []
        for _ in list(stream):
            stream.advance()
            places.append(stream.consumed)
        assert places == [0, 4, 4, 8]

    def test_who_begins_to_count_by_hand_after_a_commit_is_refused(self) -> None:
        stream = numbers(6, batch_size=2)
        loop = iter(stream)
        next(loop)
        stream.keep()
        next(loop)
        with pytest.raises(ConfigError, match="from the first one on"):
            stream.advance()

    def test_a_thread_that_takes_batches_ahead_is_noticed(self) -> None:
        stream = numbers(6, batch_size=2)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(list, stream).result()
        with pytest.raises(ConfigError, match="a thread prefetches batches for the loop"):
            stream.keep()

    def test_it_is_finished_with_its_last_batch(self) -> None:
        stream = numbers(6, batch_size=2)
        assert [stream.finished for _ in stream] == [False, False, True]

    def test_a_restored_epoch_that_was_finished_reads_nothing(self) -> None:
        stream = elastic.ElasticStream(lambda epoch: 1 / 0, batch_size=2)  # type: ignore[arg-type,return-value]
        stream.load_state_dict({"epoch": 3, "consumed": 6, "finished": True})
        assert list(stream) == []
        assert stream.state_dict() == {"epoch": 3, "consumed": 6, "finished": True}

    def test_after_a_restored_epoch_that_was_finished_the_next_one_is_served_whole(self) -> None:
        stream = numbers(5, batch_size=2)
        stream.load_state_dict({"epoch": 3, "consumed": 5, "finished": True})
        stream.set_epoch(4)
        assert [batch.tolist() for batch in stream] == [[4000, 4001], [4002, 4003], [4004]]

    @pytest.mark.parametrize("place", [(3, 4, False), (3, 5, True)])
    def test_a_restored_place_is_saved_again_as_it_was_before_the_first_loop(
        self, place: tuple[int, int, bool]
    ) -> None:
        stream = numbers(5, batch_size=2)
        restored = dict(zip(("epoch", "consumed", "finished"), place, strict=True))
        stream.load_state_dict(restored)
        stream.set_epoch(3)
        assert stream.state_dict() == restored

    def test_a_stream_that_has_become_shorter_is_an_error(self) -> None:
        stream = numbers(4, batch_size=2)
        stream.load_state_dict({"epoch": 0, "consumed": 6, "finished": False})
        with pytest.raises(ConfigError, match="epoch 0 has 4 samples, but 6 are consumed"):
            list(stream)

    def test_a_loop_that_goes_on_after_a_restore_is_an_error(self) -> None:
        stream = numbers(8, batch_size=2)
        loop = iter(stream)
        next(loop)
        stream.load_state_dict(stream.state_dict())
        with pytest.raises(ConfigError, match="leave the loop first"):
            next(loop)

    def test_a_weight_before_the_first_batch_is_an_error(self) -> None:
        with pytest.raises(ConfigError, match="no batch has been taken yet"):
            _ = numbers(4, batch_size=2).weight


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "either batch_size= or batch="),
        ({"batch_size": 2, "batch": elastic.GlobalBatch(total=4)}, "either batch_size= or batch="),
        ({"batch_size": 2, "shuffle": True}, "sets shuffle itself"),
        ({"batch_size": 0}, "per_rank is 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        numbers(4, **options)
