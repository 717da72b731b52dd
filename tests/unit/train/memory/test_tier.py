"""The memory tier of one node, as one rank after the other sees it; what crosses nodes is shown by real workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
import torch

from elastic.channel.client import ChannelClient
from elastic.train.memory.double_buffer import DoubleBuffer
from elastic.train.memory.slot import DATA_AT, LeafSpec, SlotHead, SlotLayout
from elastic.train.memory.step_agreement import AgreedStep
from elastic.train.memory.tier import MemoryTier
from elastic.train.statedict.sharded import Template
from tests.support.agent_memory import Kept, keeping

LIMIT = 4 << 20


@pytest.fixture
def kept() -> Iterator[Kept]:
    with keeping(LIMIT) as made:
        yield made


def tier(kept: Kept | None, g: int | None, rank: int = 0, ranks: int = 1) -> MemoryTier:
    """One rank's part in a generation whose `ranks` are all on this node."""
    return MemoryTier(
        cast("ChannelClient | None", kept),
        rank=rank,
        local_rank=rank,
        world_size=ranks,
        local_world_size=ranks,
        mark=f"a/{g}" if g is not None else "",
        group=None,
    )


def state(step: int, size: int = 10) -> dict[str, Any]:
    return {"model": {"w": torch.full((size,), float(step))}, "values": {"step": step}}


def commit(mine: MemoryTier, step: int, size: int = 10) -> None:
    mine.commit(step, state(step, size), {"rng": torch.tensor([step])}, {})


def held(mine: MemoryTier) -> list[tuple[str, int, str, int]]:
    """Kind, rank, mark and step of all that a rank offers."""
    return sorted((one.kind, one.head.rank, one.head.mark, one.head.step) for one in mine.readable_states().held)


def agree(mine: MemoryTier, since: int = 0) -> AgreedStep | None:
    return mine.choose([mine.readable_states()], since=since)


def fetch(mine: MemoryTier, agreed: AgreedStep, templates: Mapping[str, Template]) -> Any:
    return mine.fetch(agreed, [mine.readable_states(sharded=bool(templates))], templates)


def steps(kept: Kept, ranks: int = 1) -> set[int]:
    return {step for rank in range(ranks) for *_, step in held(tier(kept, 99, rank, ranks))}


class TestTheWayBack:
    def test_the_newest_step_comes_back_with_what_belongs_to_the_rank(self, kept: Kept) -> None:
        before = tier(kept, 1)
        for step in (1, 2, 3):
            commit(before, step)
        mine = tier(kept, 2)
        agreed = agree(mine)
        assert agreed == AgreedStep(3, "a/1", "step 3 of generation 1 is the newest that all nodes have")
        replicated, own, sharded = fetch(mine, agreed, {})
        assert torch.equal(replicated["model"]["w"], torch.full((10,), 3.0))
        assert replicated["values"] == {"step": 3}
        assert own is not None
        assert own["rng"].tolist() == [3]
        assert sharded == {}

    def test_a_state_whose_tensors_changed_their_shape_comes_back_as_it_is(self, kept: Kept) -> None:
        before = tier(kept, 1)
        for step, size in ((1, 10), (2, 5), (3, 5), (4, 20_000)):
            commit(before, step, size)
            mine = tier(kept, 2)
            replicated, _, _ = fetch(mine, AgreedStep(step, "a/1", ""), {})
            assert torch.equal(replicated["model"]["w"], torch.full((size,), float(step)))

    def test_values_that_grow_beyond_what_a_slot_has_to_spare_come_back(self, kept: Kept) -> None:
        mine = tier(kept, 1)
        for step, length in enumerate((10, 10, 50_000, 100_000, 200_000, 400_000), 1):
            text = "x" * length
            mine.commit(step, {"values": {"text": text}}, {"rng": torch.ones(1)}, {})
            replicated, _, _ = fetch(tier(kept, 2), AgreedStep(step, "a/1", ""), {})
            assert replicated["values"] == {"text": text}

    def test_sharded_parts_fill_the_tensors_of_the_template_and_give_back_their_values(self, kept: Kept) -> None:
        mine = tier(kept, 1)
        for step in (1, 2):
            part = {"w": torch.full((3, 2), float(step)), "b": torch.full((2,), -float(step)), "groups": [{"lr": step}]}
            mine.commit(step, state(step), {"rng": torch.tensor([step])}, {"model": part})
        template = {"w": torch.zeros(3, 2), "b": torch.zeros(2), "groups": [{"lr": 0}]}
        later = tier(kept, 2)
        agreed = agree(later)
        assert agreed is not None
        _, own, sharded = fetch(later, agreed, {"model": lambda saved: template})
        assert sharded["model"]["w"] is template["w"]
        assert torch.equal(cast("torch.Tensor", template["w"]), torch.full((3, 2), 2.0))
        assert torch.equal(cast("torch.Tensor", template["b"]), torch.full((2,), -2.0))
        assert sharded["model"]["groups"] == [{"lr": 2}]
        assert own is not None
        assert own["rng"].tolist() == [2]

    def test_nothing_from_before_a_rollback_comes_back(self, kept: Kept) -> None:
        commit(tier(kept, 1), 5)
        assert agree(tier(kept, 3), since=2) is None
        assert agree(tier(kept, 3), since=1) is not None

    def test_what_more_workers_left_is_offered_once_by_the_ones_that_there_are(self, kept: Kept) -> None:
        for rank in range(4):
            commit(tier(kept, 1, rank, 4), 7)
        assert held(tier(kept, 2, 0, 2)) == [("node", 0, "a/1", 7), ("rank", 0, "a/1", 7), ("rank", 2, "a/1", 7)]
        assert held(tier(kept, 2, 1, 2)) == [("node", 0, "a/1", 7), ("rank", 1, "a/1", 7), ("rank", 3, "a/1", 7)]

    def test_copies_of_other_nodes_are_offered_also_where_no_worker_of_this_one_has_committed(self, kept: Kept) -> None:
        for name, rank in (("copy1.0", 10), ("copy2.0", 20), ("copy1.1", 11)):
            layout = SlotLayout([LeafSpec("", torch.int64, (3,))])
            pair = DoubleBuffer(kept, name)
            head = SlotHead(
                mark="a/1", step=5, count=1, rank=rank, world=30, local_world=2, replicated=True, sharded=True
            )
            pair.make_room(layout.data_size, 1000).write(layout, layout.meta(head, b""), [torch.arange(3)])
        assert [one[:2] for one in held(tier(kept, 2))] == [("copy", 10), ("copy", 11), ("copy", 20)]


class TestAnEarlierWorld:
    def test_the_first_commit_spares_the_step_that_was_restored_and_the_second_does_not(self, kept: Kept) -> None:
        before = tier(kept, 1)
        for step in (1, 2, 3):
            commit(before, step)
        mine = tier(kept, 2)
        fetch(mine, AgreedStep(2, "a/1", ""), {})  # Another node had no step 3.
        commit(mine, 3)
        assert held(tier(kept, 3)) == [
            ("node", 0, "a/1", 2),
            ("node", 0, "a/2", 3),
            ("rank", 0, "a/1", 2),
            ("rank", 0, "a/2", 3),
        ]
        commit(mine, 4)
        assert held(tier(kept, 3)) == [
            ("node", 0, "a/2", 3),
            ("node", 0, "a/2", 4),
            ("rank", 0, "a/2", 3),
            ("rank", 0, "a/2", 4),
        ]

    def test_what_it_left_is_given_back_with_the_second_commit_and_not_before(self, kept: Kept) -> None:
        for rank in range(2):
            commit(tier(kept, 1, rank, 2), 7)
        mine = tier(kept, 2)
        assert agree(mine) is not None
        commit(mine, 8)
        assert ("rank", 1, "a/1", 7) in held(tier(kept, 3))
        commit(mine, 9)
        assert steps(kept) == {8, 9}
        assert kept.segments.want("rank1.0", 0)[1] == DATA_AT


class TestWhatIsNotKept:
    def test_a_state_that_became_too_large_takes_its_older_copies_with_it_and_a_line_says_so(
        self, kept: Kept, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mine = tier(kept, 1)
        for step in (1, 2):
            commit(mine, step)
        commit(mine, 3, size=LIMIT)
        assert not mine.on
        assert steps(kept) == set()
        assert kept.segments.total_bytes == 4 * DATA_AT
        assert "rank 0 saves no in-memory checkpoint: in-memory checkpoints need" in capsys.readouterr().err
        commit(mine, 4)
        assert steps(kept) == set()
        assert capsys.readouterr().err == ""

    def test_where_there_is_no_agent_a_line_says_so_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        mine = tier(None, 1)
        for step in (1, 2):
            commit(mine, step)
        assert not mine.on
        assert agree(mine) is None
        assert capsys.readouterr().err == (
            "[elastic] in-memory checkpoints are off: there is no agent; start the script with elastic-launch\n"
        )

    def test_without_the_mark_of_a_generation_nothing_is_kept(self, kept: Kept) -> None:
        mine = tier(kept, None)
        commit(mine, 1)
        assert not mine.on
        assert kept.segments.names == ()

    @pytest.mark.parametrize("odd", [torch.eye(3).to_sparse(), torch.empty(3, device="meta")], ids=["sparse", "meta"])
    def test_a_tensor_without_plain_memory_switches_it_off_and_a_line_says_why(
        self, kept: Kept, odd: torch.Tensor, capsys: pytest.CaptureFixture[str]
    ) -> None:
        mine = tier(kept, 1)
        mine.commit(1, {"model": {"w": odd}}, {}, {})
        assert not mine.on
        assert steps(kept) == set()
        assert "cannot store a tensor with" in capsys.readouterr().err

    def test_only_the_first_worker_of_a_node_keeps_what_is_the_same_on_all(self, kept: Kept) -> None:
        commit(tier(kept, 1, 1, 2), 1)
        assert sorted(kept.segments.names) == ["rank1.0"]
        commit(tier(kept, 1, 0, 2), 1)
        assert sorted(kept.segments.names) == ["node.0", "rank0.0", "rank1.0"]
