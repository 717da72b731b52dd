"""One slot of memory: what is written comes back, and what is odd is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic.train.comm.tensor_boxes import Box
from elastic.train.memory.slot import (
    ALIGNED_BYTES,
    DATA_AT,
    LeafSpec,
    Slot,
    SlotContent,
    SlotHead,
    SlotLayout,
    SlotMemoryShort,
    SlotMeta,
    SlotSizes,
    TensorLeaf,
)

SIZE = DATA_AT + 8192
HEAD = SlotHead(mark="a/1", step=5, count=1, rank=2, world=4, local_world=2, replicated=True, sharded=True)
TENSORS = [
    torch.arange(6, dtype=torch.float64).view(2, 3),
    torch.tensor(True),
    torch.empty(0, 3, dtype=torch.int64),
    torch.full((5,), 1.5, dtype=torch.bfloat16),
    torch.tensor([1 + 2j]),
    torch.arange(12).view(3, 4).t(),
]


class Memory:
    """A segment, as an agent makes it."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("slot")
        os.ftruncate(self.fd, SIZE)

    def slot(self) -> Slot:
        return Slot(self.fd, SIZE)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    os.close(made.fd)


def layout() -> SlotLayout:
    specs = [LeafSpec("", tensor.dtype, tuple(tensor.shape)) for tensor in TENSORS[:-1]]
    return SlotLayout([*specs, LeafSpec("model/w", torch.int64, (8, 3), Box((4, 0), (4, 3)))])


def write(slot: Slot) -> SlotSizes:
    made = layout()
    return slot.write(made, made.meta(HEAD, b"the rest"), TENSORS)


def same(content: SlotContent | None) -> bool:
    return (
        content is not None
        and content.head == HEAD
        and content.meta.rest == b"the rest"
        and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(content.tensors, TENSORS, strict=True))
    )


def test_a_state_comes_back_in_another_process_as_it_was(memory: Memory) -> None:
    write(memory.slot())
    content = memory.slot().read()
    assert same(content)
    assert content is not None
    assert content.meta.leaves[-1].box == Box((4, 0), (4, 3))


def test_a_new_slot_holds_nothing(memory: Memory) -> None:
    assert memory.slot().read() is None


def test_a_slot_that_is_being_written_holds_nothing(memory: Memory) -> None:
    write(memory.slot())
    memory.slot().clear()
    assert memory.slot().read() is None


def test_the_same_slot_takes_another_state(memory: Memory) -> None:
    slot = memory.slot()
    other = SlotLayout([LeafSpec("", torch.int64, (3,))])
    slot.write(other, other.meta(HEAD, b""), [torch.arange(3)])
    write(slot)
    assert same(memory.slot().read())


def test_the_bytes_of_a_slot_make_another_slot(memory: Memory) -> None:
    other = Memory()
    slot, copy = memory.slot(), other.slot()
    sizes = write(slot)
    for source, target in zip(slot.stretches(sizes, 100), copy.stretches(sizes, 100), strict=True):
        target.copy_(source)
    copy.finish(sizes)
    assert same(other.slot().read())
    os.close(other.fd)


@given(st.integers(0, 63) | st.integers(DATA_AT, SIZE - 1), st.integers(0, 255))
def test_a_changed_byte_of_the_header_or_of_the_meta_never_gives_another_state(at: int, byte: int) -> None:
    memory = Memory()
    sizes = write(memory.slot())
    if (
        not DATA_AT <= at < DATA_AT + sizes.data
    ):  # The data itself has no checksum: that would cost as much as the copy.
        os.pwrite(memory.fd, bytes([byte]), at)
    content = memory.slot().read()
    assert content is None or same(content)
    os.close(memory.fd)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=5, max_size=5))
def test_sizes_that_lie_outside_the_memory_are_nothing(sizes: list[int]) -> None:
    memory = Memory()
    write(memory.slot())
    os.pwrite(memory.fd, b"".join(size.to_bytes(8, "little") for size in sizes), 16)
    assert memory.slot().read() is None
    os.close(memory.fd)


def test_memory_too_small_for_a_header_is_no_slot(memory: Memory) -> None:
    with pytest.raises(ValueError, match="a slot needs at least"):
        Slot(memory.fd, 10)


def test_the_smallest_slot_is_a_page_and_holds_nothing(memory: Memory) -> None:
    assert Slot(memory.fd, DATA_AT).read() is None


def test_a_state_fits_to_the_last_byte_and_no_further(memory: Memory) -> None:
    slot = memory.slot()
    assert slot.fits(8000, 192)
    assert not slot.fits(8000, 193)
    assert not slot.fits(8001, 192)


def test_a_write_that_fails_in_the_middle_leaves_nothing_of_the_state_before(memory: Memory) -> None:
    slot = memory.slot()
    write(slot)
    with pytest.raises(RuntimeError):
        slot.write(layout(), b"", [*TENSORS[:-1], torch.zeros(7)])
    assert memory.slot().read() is None


def test_what_is_sent_of_a_slot_is_each_byte_once_in_pieces_of_the_size_that_was_asked_for(memory: Memory) -> None:
    slot = memory.slot()
    sizes = write(slot)
    pieces = slot.stretches(sizes, 100)
    assert [piece.numel() for piece in pieces[:-1]] == [100] * (len(pieces) - 1)
    assert sum(piece.numel() for piece in pieces) == sizes.data + sizes.meta


def test_all_pages_of_a_slot_are_there_before_the_first_byte_is_written(memory: Memory) -> None:
    memory.slot().clear()
    assert os.fstat(memory.fd).st_blocks * 512 >= SIZE


def test_memory_that_the_machine_does_not_give_is_said_before_a_byte_is_written(memory: Memory) -> None:
    slot = memory.slot()
    os.ftruncate(memory.fd, DATA_AT)  # The pages behind it cannot be given any more.
    with pytest.raises(SlotMemoryShort, match=r"cannot allocate 12\.3 kB of memory \("):
        slot.clear()


class TestATableThatIsOdd:
    """Its checksum is right, so whoever wrote it was another version, or meant harm."""

    def read(self, memory: Memory, leaf: TensorLeaf) -> SlotContent | None:
        """What is read where the table has this leaf, and the data 512 bytes."""
        made = SlotLayout([LeafSpec("", torch.uint8, (512,))])
        slot = memory.slot()
        slot.write(made, msgspec.msgpack.encode(SlotMeta(HEAD, (leaf,), b"")), [torch.zeros(512, dtype=torch.uint8)])
        return slot.read()

    def test_one_that_is_right_is_read(self, memory: Memory) -> None:
        assert self.read(memory, TensorLeaf("", "int64", (32, 2), Box((0, 0), (32, 2)), 0)) is not None
        assert self.read(memory, TensorLeaf("w", "int64", (99, 2), Box((67, 0), (32, 1)), 256)) is not None

    @pytest.mark.parametrize(
        "leaf",
        [
            TensorLeaf("", "nothing", (8,), Box((0,), (8,)), 0),
            TensorLeaf("", "save", (8,), Box((0,), (8,)), 0),
            TensorLeaf("", "int64", (8,), Box((1,), (8,)), 0),
            TensorLeaf("", "int64", (8,), Box((0, 0), (8, 1)), 0),
            TensorLeaf("", "int64", (8,), Box((0,), (8,)), -ALIGNED_BYTES),
            TensorLeaf("", "int64", (8,), Box((0,), (8,)), 8),
            TensorLeaf("", "int64", (65,), Box((0,), (65,)), 0),
            TensorLeaf("", "int64", (33,), Box((0,), (33,)), 256),
        ],
        ids=["no type", "not a type", "outside", "dimensions", "before", "unaligned", "larger", "behind"],
    )
    def test_a_leaf_that_cannot_be_makes_the_whole_slot_nothing(self, memory: Memory, leaf: TensorLeaf) -> None:
        assert self.read(memory, leaf) is None
