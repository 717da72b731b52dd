"""The plan of an iteration, as numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.errors import ConfigError
from elastic.train.data.batch_plan import BatchPlan, BatchRule, MicroBatch, steps_of

RULES = st.one_of(
    st.builds(BatchRule, per_rank=st.integers(1, 9), drop_last=st.booleans()),
    st.builds(
        BatchRule, total=st.integers(1, 60), max_per_rank=st.none() | st.integers(1, 12), drop_last=st.booleans()
    ),
)


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    length = draw(st.integers(0, 300))
    return BatchPlan(length, draw(st.integers(0, length)), draw(st.integers(1, 9)), draw(RULES))


def of_rank(plan: BatchPlan, rank: int) -> list[MicroBatch]:
    return [micro for step in range(plan.steps) for micro in plan.micro_batches(step, rank)]


@given(plans())
def test_the_real_positions_of_a_step_are_one_run_cut_by_rank(plan: BatchPlan) -> None:
    for step in range(plan.steps):
        micros = [micro for rank in range(plan.world) for micro in plan.micro_batches(step, rank)]
        positions = [position for micro in micros if micro.size for position in micro.positions]
        assert positions == list(range(plan.start(step), plan.start(step) + plan.samples(step)))
        assert {micro.of for micro in micros} == {plan.samples(step)}


@given(plans())
def test_every_position_is_served_unless_the_tail_is_dropped(plan: BatchPlan) -> None:
    sizes = [plan.samples(step) for step in range(plan.steps)]
    left = plan.length - plan.consumed
    whole = plan.rule.step(plan.world)
    assert sizes == [whole] * (left // whole) if plan.rule.drop_last else sum(sizes) == left
    assert plan.consumed_after(plan.steps) == plan.length


@given(plans())
def test_all_ranks_have_the_same_number_of_batches_and_none_is_empty(plan: BatchPlan) -> None:
    for rank in range(plan.world):
        micros = of_rank(plan, rank)
        assert len(micros) == plan.batches
        assert micros == [plan.micro_batch(batch, rank) for batch in range(plan.batches)]
        assert sum(len(micro.positions) for micro in micros) == plan.taken_by(rank)
        assert all(1 <= len(micro.positions) <= plan.rule.size(plan.world) for micro in micros)
        assert sum(micro.last for micro in micros) == plan.steps


@given(plans())
def test_a_step_counts_as_done_with_its_last_batch(plan: BatchPlan) -> None:
    done = 0
    for taken, micro in enumerate(of_rank(plan, 0), start=1):
        done += micro.last
        assert plan.steps_in(taken) == done
    assert plan.steps_in(0) == 0


@given(plans())
def test_the_weights_of_a_step_add_up_to_the_world(plan: BatchPlan) -> None:
    for step in range(plan.steps):
        weights = [micro.weight for rank in range(plan.world) for micro in plan.micro_batches(step, rank)]
        assert sum(weights) == pytest.approx(plan.world)


@given(plans())
def test_a_plan_made_after_any_step_goes_on_as_the_first_one_would_have(plan: BatchPlan) -> None:
    for step in range(plan.steps + 1):
        later = BatchPlan(plan.length, plan.consumed_after(step), plan.world, plan.rule)
        expected = [plan.samples(each) for each in range(step, plan.steps)]
        assert [later.samples(each) for each in range(later.steps)] == expected


@given(plans(), st.integers(1, 9))
def test_with_a_total_the_steps_are_the_same_in_every_world(plan: BatchPlan, world: int) -> None:
    if plan.rule.total is not None:
        other = BatchPlan(plan.length, plan.consumed, world, plan.rule)
        assert other.steps == plan.steps
        assert [other.start(step) for step in range(plan.steps)] == [plan.start(step) for step in range(plan.steps)]


@given(plans())
def test_padding_is_only_where_fewer_samples_than_ranks_are_left_or_shares_are_single_samples(plan: BatchPlan) -> None:
    for step in range(plan.steps):
        for rank in range(plan.world):
            for micro in plan.micro_batches(step, rank):
                if not micro.size:
                    assert micro.weight == 0.0
                    if plan.rule.per_rank is not None and plan.rule.per_rank > 1:
                        assert plan.samples(step) < plan.world
                        assert plan.steps == 1


@given(plans())
def test_a_stream_is_cut_as_a_plan_of_its_length(plan: BatchPlan) -> None:
    cut = list(steps_of(range(plan.consumed, plan.length), plan.rule, plan.world))
    expected = [range(plan.start(step), plan.start(step) + plan.samples(step)) for step in range(plan.steps)]
    assert [step for step, _ in cut] == [list(step) for step in expected]
    assert [final for _, final in cut] == [step == plan.steps - 1 for step in range(plan.steps)]


def sizes(plan: BatchPlan) -> list[list[int]]:
    return [[micro.size for micro in of_rank(plan, rank)] for rank in range(plan.world)]


def test_the_last_two_steps_are_made_even_where_the_last_would_leave_ranks_empty() -> None:
    assert sizes(BatchPlan(26, 0, 3, BatchRule(per_rank=4))) == [[4, 3, 3], [4, 2, 2], [4, 2, 2]]
    assert BatchRule(per_rank=2).tail(9, 4) == (0, (5, 4))


def test_with_single_samples_for_each_rank_the_last_step_alone_is_smaller() -> None:
    assert BatchRule(per_rank=1).tail(9, 4) == (2, (1,))


def test_a_last_step_that_gives_every_rank_a_sample_stays_as_it_is() -> None:
    assert BatchRule(per_rank=4).tail(19, 2) == (2, (3,))
    assert BatchRule(per_rank=2).tail(12, 4) == (1, (4,))


@pytest.mark.parametrize(
    ("rule", "ahead"), [(BatchRule(total=4), 1), (BatchRule(per_rank=2), 2), (BatchRule(total=4, drop_last=True), 4)]
)
def test_a_stream_is_read_ahead_no_further_than_its_rule_needs(rule: BatchRule, ahead: int) -> None:
    read: list[int] = []
    steps = steps_of((read.append(number) or number for number in range(100)), rule, 2)  # type: ignore[func-returns-value]
    for number in range(1, 4):
        assert next(steps) == ([*range(4 * number - 4, 4 * number)], False)
        assert len(read) == 4 * number + ahead


def test_a_rank_that_cannot_hold_its_share_takes_it_in_even_parts() -> None:
    assert sizes(BatchPlan(32, 0, 3, BatchRule(total=16, max_per_rank=3))) == [[3, 3, 3, 3], [3, 2, 3, 2], [3, 2, 3, 2]]


def test_fewer_samples_than_ranks_are_padded_with_one_that_counts_nothing() -> None:
    plan = BatchPlan(10, 8, 3, BatchRule(per_rank=4))
    assert sizes(plan) == [[1], [1], [0]]
    padding = plan.micro_batches(0, 2)[0]
    assert (list(padding.positions), padding.weight) == ([8], 0.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "either per_rank or total"),
        ({"per_rank": 4, "total": 8}, "either per_rank or total"),
        ({"per_rank": 4, "max_per_rank": 2}, "max_per_rank requires total"),
        ({"total": 0}, "total is 0"),
        ({"per_rank": True}, "per_rank is True"),
        ({"total": 8, "max_per_rank": 2.5}, "max_per_rank is 2.5"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BatchRule(**values)


@pytest.mark.parametrize(("length", "consumed", "world"), [(5, 6, 1), (5, -1, 1), (5, 0, 0)])
def test_a_place_that_is_not_in_the_epoch_is_refused(length: int, consumed: int, world: int) -> None:
    with pytest.raises(ConfigError):
        BatchPlan(length, consumed, world, BatchRule(per_rank=1))


def test_a_step_or_a_batch_that_is_not_in_the_plan_is_an_error() -> None:
    plan = BatchPlan(8, 0, 2, BatchRule(per_rank=2))
    with pytest.raises(IndexError, match="step 2 of 2"):
        plan.samples(2)
    with pytest.raises(IndexError, match="batch 2 of 2"):
        plan.micro_batch(2, 0)
