"""Which step can be restored from memory, for what nodes may hold after losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from elastic.train.comm.tensor_boxes import Box
from elastic.train.memory.slot import SlotContent, SlotHead, SlotMeta, TensorLeaf
from elastic.train.memory.step_agreement import (
    AgreedStep,
    NoCommonStep,
    RankStates,
    ShardRegion,
    StoredState,
    agree,
    describe_states,
)

WORLD = 3
Kind = Literal["node", "rank", "copy"]


def head(step: int, rank: int, g: int = 1, *, count: int = 2, sharded: bool = False, whose: str = "a") -> SlotHead:
    mark = f"{whose}/{g}"
    return SlotHead(
        mark=mark, step=step, count=count, rank=rank, world=WORLD, local_world=1, replicated=True, sharded=sharded
    )


def node(rank: int, *steps: int, g: int = 1, count: int = 2, whose: str = "a") -> RankStates:
    """A node that holds the replicated parts and its rank's own ones of these steps."""
    heads = [head(step, rank, g, count=count, whose=whose) for step in steps]
    kinds: tuple[Kind, Kind] = ("node", "rank")
    return RankStates(tuple(StoredState(kind, one) for one in heads for kind in kinds))


def shards(rank: int, own: Sequence[int], copies: Sequence[int] = ()) -> RankStates:
    """A node with these steps of its own shard, and of its predecessor's: a third of a tensor of 6 rows each."""
    before = (rank - 1) % WORLD
    cuts = tuple({"model/w": ShardRegion((6, 2), Box((2 * who, 0), (2, 2)))} for who in (rank, before))
    held = [StoredState("node", head(step, rank, sharded=True)) for step in own]
    held += [StoredState("rank", head(step, rank, sharded=True), 0) for step in own]
    held += [StoredState("copy", head(step, before, sharded=True), 1) for step in copies]
    return RankStates(tuple(held), cuts)


def step_of(found: AgreedStep | NoCommonStep) -> int | None:
    return found.step if isinstance(found, AgreedStep) else None


class TestReplicated:
    def test_a_first_start_has_nothing_to_restore(self) -> None:
        assert agree([RankStates(), RankStates()], "a") == NoCommonStep(
            "no node has an in-memory checkpoint of this job"
        )

    def test_a_survivor_that_is_a_step_ahead_goes_back_to_the_step_that_all_have(self) -> None:
        found = agree([node(0, 4, 5), node(1, 3, 4)], "a")
        assert found == AgreedStep(4, "a/1", "step 4 of generation 1 is the newest that all nodes have")

    def test_a_newcomer_does_not_hold_the_others_back(self) -> None:
        assert step_of(agree([node(0, 4, 5), RankStates(), node(1, 4, 5)], "a")) == 5

    def test_a_node_that_was_killed_in_the_middle_of_a_copy_has_the_step_before(self) -> None:
        assert step_of(agree([node(0, 4, 5), node(1, 4)], "a")) == 4

    def test_a_node_that_holds_an_old_generation_only_counts_as_a_newcomer(self) -> None:
        found = agree([node(0, 90, 91, g=1), node(1, 7, 8, g=2), node(2, 7, 8, g=2)], "a")
        assert found == AgreedStep(8, "a/2", "step 8 of generation 2 is the newest that all nodes have")

    def test_without_a_common_step_the_newest_whole_one_is_taken(self) -> None:
        found = agree([node(0, 4, 5), node(1, 50, 51)], "a")
        assert found == AgreedStep(51, "a/1", "step 51 of generation 1 is the newest complete one")

    def test_another_incarnation_does_not_count(self) -> None:
        assert step_of(agree([node(0, 4, 5, whose="b")], "a")) is None

    def test_nothing_from_before_a_rollback_counts(self) -> None:
        assert step_of(agree([node(0, 4, 5, g=3)], "a", since=4)) is None
        assert step_of(agree([node(0, 4, 5, g=4)], "a", since=4)) == 5

    def test_own_parts_without_the_replicated_ones_are_no_step(self) -> None:
        alone = RankStates((StoredState("rank", head(5, 1)),))
        assert agree([alone], "a") == NoCommonStep(
            "step 5 of generation 1 is incomplete: no node has its replicated components"
        )

    def test_a_mark_that_is_none_is_left_out(self) -> None:
        odd = SlotHead(mark="a/x", step=1, count=1, rank=0, world=1, local_world=1, replicated=False, sharded=False)
        assert step_of(agree([RankStates((StoredState("node", odd),))], "a")) is None


class TestSharded:
    def test_the_copy_of_a_lost_nodes_shards_makes_a_step_whole(self) -> None:
        assert step_of(agree([shards(0, [4, 5], [4, 5]), shards(1, [4, 5], [4, 5])], "a")) == 5

    def test_a_step_whose_copy_did_not_arrive_is_not_whole_and_the_one_before_is_taken(self) -> None:
        assert step_of(agree([shards(0, [4, 5], [4]), shards(1, [4, 5], [4, 5])], "a")) == 4

    def test_two_neighbours_lost_at_once_are_too_many_for_one_copy(self) -> None:
        found = agree([shards(0, [4, 5], [4, 5]), RankStates()], "a")
        assert found == NoCommonStep(
            "step 5 of generation 1 is incomplete: the shards of rank 1 are lost: no rank holds model/w[2:4, 0:2]"
        )

    def test_without_copies_a_lost_node_leaves_nothing(self) -> None:
        assert step_of(agree([shards(0, [4, 5]), shards(2, [4, 5])], "a")) is None

    def test_a_copy_that_did_not_arrive_costs_no_step_while_its_owner_is_there(self) -> None:
        found = agree([shards(0, [4, 5], [4]), shards(1, [4, 5], [4, 5]), shards(2, [4, 5], [4, 5])], "a")
        assert found == AgreedStep(5, "a/1", "step 5 of generation 1 is the newest that all nodes have")

    def test_without_any_shard_a_step_is_not_whole(self) -> None:
        replicated = RankStates((StoredState("node", head(5, 0, sharded=True)),))
        assert agree([replicated], "a") == NoCommonStep(
            "step 5 of generation 1 is incomplete: no rank has any of its sharded components"
        )

    def test_a_node_whose_worker_was_killed_before_its_shards_were_written_counts_as_lost(self) -> None:
        torn = RankStates((StoredState("node", head(5, 1, sharded=True)),))
        found = agree([shards(0, [5]), torn], "a")
        assert isinstance(found, NoCommonStep)
        assert "the shards of rank 1, 2 are lost: no rank holds model/w[2:6, 0:2]" in found.why

    def test_a_state_that_has_sharded_parts_alone_needs_no_replicated_ones(self) -> None:
        own = msgspec.structs.replace(head(5, 0, sharded=True), replicated=False)
        alone = RankStates((StoredState("rank", own, 0),), ({"model/w": ShardRegion((6, 2), Box((0, 0), (6, 2)))},))
        assert step_of(agree([alone], "a")) == 5

    def test_all_nodes_together_need_no_copies(self) -> None:
        assert step_of(agree([shards(rank, [4, 5]) for rank in range(WORLD)], "a")) == 5


class TestGenerations:
    def test_a_generation_lost_in_its_first_commit_leaves_the_step_that_it_began_with(self) -> None:
        torn = RankStates((StoredState("rank", head(6, 0, 2, count=1)), *node(0, 5, g=1).held))
        assert agree([torn, node(1, 5, g=1)], "a") == AgreedStep(
            5, "a/1", "step 5 of generation 1 is the newest that all nodes have"
        )

    def test_a_generation_that_got_further_does_not_fall_back_to_the_one_before(self) -> None:
        torn = RankStates((StoredState("rank", head(100, 0, 2, count=2)), *node(0, 5, g=1).held))
        assert step_of(agree([torn, node(1, 5, g=1)], "a")) is None

    def test_that_one_rank_got_further_is_enough(self) -> None:
        first = RankStates((StoredState("rank", head(6, 0, 2, count=1)), *node(0, 5, g=1).held))
        second = RankStates((StoredState("rank", head(7, 1, 2, count=2)), *node(1, 5, g=1).held))
        assert step_of(agree([first, second], "a")) is None

    def test_where_nothing_is_whole_the_newest_generation_is_spoken_of(self) -> None:
        torn = RankStates((StoredState("rank", head(6, 0, 2, count=1)), StoredState("rank", head(5, 0, 1))))
        assert agree([torn], "a") == NoCommonStep(
            "step 6 of generation 2 is incomplete: no node has its replicated components"
        )


class TestWhatARankSays:
    LEAF = TensorLeaf("model/w", "float32", (6, 2), Box((2, 0), (2, 2)), 0)
    PLAIN = TensorLeaf("", "float32", (3,), Box((0,), (3,)), 64)

    def content(self, *leaves: TensorLeaf, sharded: bool = True, rest: bytes = b"") -> SlotContent:
        meta = SlotMeta(head(5, 1, sharded=sharded), leaves, rest)
        return SlotContent(meta, msgspec.msgpack.encode(meta), ())

    def test_only_sharded_tensors_are_named_and_states_with_the_same_ones_share_them(self) -> None:
        own, other = self.content(self.PLAIN, self.LEAF), self.content(self.LEAF)
        third = self.content(msgspec.structs.replace(self.LEAF, box=Box((4, 0), (2, 2))))
        said = describe_states([("node", self.content(self.PLAIN)), ("rank", own), ("rank", other), ("copy", third)])
        assert said.cuts == (
            {"model/w": ShardRegion((6, 2), Box((2, 0), (2, 2)))},
            {"model/w": ShardRegion((6, 2), Box((4, 0), (2, 2)))},
        )
        assert [(one.kind, one.cuts) for one in said.held] == [("node", -1), ("rank", 0), ("rank", 0), ("copy", 1)]
        assert {one.head for one in said.held} == {own.head}

    def test_a_state_without_sharded_parts_names_no_tensors(self) -> None:
        said = describe_states([("rank", self.content(self.PLAIN, sharded=False))])
        assert said.cuts == ()
        assert [(one.kind, one.head, one.cuts) for one in said.held] == [("rank", head(5, 1), -1)]

    def test_trees_with_the_same_leaves_have_the_same_sum_however_long_the_rest_is(self) -> None:
        short, long = self.content(self.PLAIN), self.content(self.PLAIN, rest=b"rest")
        one, same, other = describe_states([("node", short), ("node", long), ("node", self.content())]).held
        assert one.sum == same.sum != other.sum
        assert same.size == one.size + 4
