"""The two slots of one state, in the memory that an agent keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from elastic.train.memory.double_buffer import DoubleBuffer
from elastic.train.memory.slot import DATA_AT, LeafSpec, SlotHead, SlotLayout, SlotMemoryShort
from tests.support.agent_memory import Kept, keeping

LIMIT = 1 << 20


@pytest.fixture
def kept() -> Iterator[Kept]:
    with keeping(LIMIT) as made:
        yield made


def write(
    pair: DoubleBuffer, step: int, size: int = 10, *, g: int | str = 1, keep: tuple[str, int] | None = None
) -> None:
    tensor = torch.full((size,), step)
    layout = SlotLayout([LeafSpec("", tensor.dtype, (size,))])
    slot = pair.make_room(layout.data_size, 1000, keep)
    head = SlotHead(mark=f"a/{g}", step=step, count=1, rank=0, world=1, local_world=1, replicated=True, sharded=False)
    slot.write(layout, layout.meta(head, b""), [tensor])
    pair.wrote(slot, head.mark, step)


def steps(kept: Kept) -> list[int]:
    """What a new process finds; each state is checked against its step."""
    found = DoubleBuffer(kept, "node").read_slots()
    assert all(bool((one.tensors[0] == one.head.step).all()) for one in found)
    return sorted(one.head.step for one in found)


def test_the_newest_two_states_are_held(kept: Kept) -> None:
    pair = DoubleBuffer(kept, "node")
    for step in (1, 2, 3, 4, 5):
        write(pair, step)
        assert steps(kept) == [step - 1, step] if step > 1 else [step]


@pytest.mark.parametrize("before", [9, "x"])
def test_the_states_of_an_older_generation_go_first_also_where_their_steps_are_higher(
    kept: Kept, before: int | str
) -> None:
    for step in (8, 9):
        write(DoubleBuffer(kept, "node"), step, g=before)
    pair = DoubleBuffer(kept, "node")
    write(pair, 3, g=10)
    assert steps(kept) == [3, 9]
    write(pair, 4, g=10)
    assert steps(kept) == [3, 4]


def test_while_a_state_is_written_the_one_before_is_there(kept: Kept) -> None:
    pair = DoubleBuffer(kept, "node")
    for step in (1, 2):
        write(pair, step)
    pair.make_room(80, 1000)
    assert steps(kept) == [2]


def test_a_state_that_grows_gets_more_memory_and_the_one_before_stays(kept: Kept) -> None:
    pair = DoubleBuffer(kept, "node")
    for step in (1, 2):
        write(pair, step)
    before = kept.segments.total_bytes
    write(pair, 3, size=30_000)
    assert kept.segments.total_bytes > before
    assert steps(kept) == [2, 3]


def test_memory_that_is_refused_leaves_the_states_before(kept: Kept) -> None:
    pair = DoubleBuffer(kept, "node")
    for step in (1, 2):
        write(pair, step)
    with pytest.raises(SlotMemoryShort, match="--memory-limit"):
        write(pair, 3, size=LIMIT)
    assert steps(kept) == [1, 2]


def test_the_first_commit_of_a_generation_spares_the_state_that_it_began_with(kept: Kept) -> None:
    for step in (1, 2):
        write(DoubleBuffer(kept, "node"), step)
    restored = DoubleBuffer(kept, "node")  # Its generation went back to step 1, because another node had no step 2.
    write(restored, 2, g=2, keep=("a/1", 1))
    assert steps(kept) == [1, 2]
    write(restored, 3, g=2)
    assert steps(kept) == [2, 3]


def test_a_first_commit_that_fails_is_followed_by_one_in_the_same_slot(kept: Kept) -> None:
    for step in (1, 2, 3):
        write(DoubleBuffer(kept, "node"), step)
    restored = DoubleBuffer(kept, "node")
    restored.make_room(80, 1000, ("a/1", 2))
    assert steps(kept) == [2]
    restored.make_room(80, 1000)
    assert steps(kept) == [2]


def test_a_new_slot_has_room_for_a_table_of_twice_the_length(kept: Kept) -> None:
    assert DoubleBuffer(kept, "node").make_room(200_000, 100_000).fits(200_000, 200_000)


def test_where_nothing_was_written_nothing_is_kept_of_what_is_dropped(kept: Kept) -> None:
    DoubleBuffer(kept, "node").drop()
    assert kept.segments.names == ()


def test_what_is_dropped_keeps_a_page_for_each_slot(kept: Kept) -> None:
    pair = DoubleBuffer(kept, "node")
    for step in (1, 2):
        write(pair, step)
    pair.drop()
    assert kept.segments.total_bytes == 2 * DATA_AT
    assert steps(kept) == []
    write(pair, 4)
    assert steps(kept) == [4]


def test_there_is_memory_under_a_name_once_something_was_written_also_when_that_was_dropped(kept: Kept) -> None:
    def there() -> bool:
        pair = DoubleBuffer(kept, "node")
        pair.read_slots()
        return pair.there

    assert not there()
    pair = DoubleBuffer(kept, "node")
    write(pair, 1)
    assert there()
    pair.drop()
    assert there()


class Odd:
    """An agent that hands out a descriptor that cannot be mapped."""

    def segment(self, name: str, size: int) -> tuple[int, int] | str:
        return os.open(os.devnull, os.O_RDONLY), 2 * DATA_AT


def test_memory_that_cannot_be_mapped_holds_nothing_and_is_no_room() -> None:
    pair = DoubleBuffer(Odd(), "node")
    assert pair.read_slots() == []
    assert not pair.there
    with pytest.raises(SlotMemoryShort):
        pair.make_room(80, 1000)


class Counting(Kept):
    """Counts what an agent is asked for."""

    def __init__(self) -> None:
        super().__init__(LIMIT)
        self.sizes: list[int] = []

    def segment(self, name: str, size: int) -> tuple[int, int] | str:
        self.sizes.append(size)
        return super().segment(name, size)


def test_once_both_slots_are_large_enough_the_agent_is_asked_for_nothing_more() -> None:
    kept = Counting()
    pair = DoubleBuffer(kept, "node")
    for step in (1, 2):
        write(pair, step)
    asked = list(kept.sizes)
    for step in (3, 4, 5):
        write(pair, step, size=20)
    assert kept.sizes == asked
    assert len(asked) == 4
    kept.segments.drop_all()


def test_no_descriptor_is_left_open(kept: Kept) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    pair = DoubleBuffer(kept, "node")
    for step in (1, 2):
        write(pair, step)
    before = count()
    pair.read_slots()
    DoubleBuffer(Odd(), "node").read_slots()
    pair.drop()
    assert count() == before
