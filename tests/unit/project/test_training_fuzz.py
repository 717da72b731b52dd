"""What judges a fuzzed run sees what is wrong in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pkgutil import resolve_name

import pytest

from elastic.testing import End, Failure, NodeFailure, Planned, World
from elastic.testing.schedule import Until
from tests.fuzz.training.check import Judge, Rank, read
from tests.fuzz.training.plan import PLACES, Plan, Training, plan

TRAINING = Training(
    mode="manual", samples=8, epochs=1, total=2, per_rank=1, most=None, every=None, memory_every=1, stream=False,
    workers=0, adam=False, exact=True, ballast=1, keep=1, copies=1, check_nan=False,
)  # fmt: skip


def judged(until: Until, worlds: list[list[Rank]], value: float = 1.0, every: int | None = None) -> str:
    """The sentences about a run of two worlds with two nodes each."""
    made = Plan(
        seed=0,
        training=replace(TRAINING, every=every),
        worlds=(World(2, until), World(2, End())),
        strikes=((), ()),
        slots=1,
        shared=True,
    )
    return "; ".join(Judge(made, worlds).run([[value], [value]], [1.0]))


def ranks(start: int, last: int, *, kept: int | None = None, left: bool = False, ended: bool = False) -> list[Rank]:
    """Two ranks that share two samples in each step."""
    return [
        Rank(
            start=start,
            takes={step: [(0, 2 * step - 2 + rank)] for step in range(start + 1, last + 1)},
            kept=last if kept is None else kept,
            left=left,
            ended=last if ended else None,
        )
        for rank in range(2)
    ]


def test_a_run_that_lost_nothing_is_right() -> None:
    assert judged(Failure(2), [ranks(0, 2), ranks(2, 4, ended=True)]) == ""
    assert judged(Planned(2), [ranks(0, 2, left=True), ranks(2, 4, ended=True)]) == ""


def test_ranks_that_start_at_different_steps_are_seen() -> None:
    first, second = ranks(2, 4, ended=True)
    assert "start at different steps" in judged(Failure(2), [ranks(0, 2), [first, replace(second, start=1)]])


def test_a_step_that_could_be_read_and_was_not_is_seen() -> None:
    assert "starts at step 1, but step 3 could be read" in judged(Failure(3), [ranks(0, 3), ranks(1, 4, ended=True)])
    assert "step 3 could be read" in judged(NodeFailure(3, nodes=(0,)), [ranks(0, 3), ranks(1, 4, ended=True)])


def test_a_finished_step_that_a_planned_stop_lost_is_seen() -> None:
    found = judged(Planned(3), [ranks(0, 3, kept=2, left=True), ranks(2, 4, ended=True)])
    assert "starts at step 2, but step 3 could be read" in found


def test_steps_that_nobody_did_are_seen_with_their_samples() -> None:
    found = judged(Failure(1), [ranks(0, 1), ranks(2, 4, ended=True)])
    assert "nobody did the steps [2]" in found
    assert "epoch 0 uses samples so many times instead of once: {2: 0, 3: 0}" in found


def test_other_parameters_at_the_end_are_seen() -> None:
    assert "rank 0 ends 1.0e-08 from" in judged(Failure(2), [ranks(0, 2), ranks(2, 4, ended=True)], 1 + 1e-8)


def test_a_checkpoint_that_the_job_knew_of_is_not_passed_over() -> None:
    known = [replace(rank, known=2) for rank in ranks(0, 4, ended=True)]
    all_lost = NodeFailure(2, nodes=(0, 1))
    assert "the job knew that step 2 is saved" in judged(all_lost, [ranks(0, 2), known])
    assert judged(all_lost, [ranks(0, 2), ranks(0, 4, ended=True)]) == ""


def test_a_diary_that_was_cut_off_is_read_up_to_there() -> None:
    rank = read(['["start", 3, 0, true, "{\\"step\\": 2}"]', '["take", 0, 4, [7]]', '["torn", 3, [1.0]]', '["ke'])
    assert (rank.start, rank.known, rank.kept, rank.last) == (3, 2, 3, 4)
    assert rank.torn == "step 3 has numbers of [1.0]"


def test_a_seed_is_always_the_same_plan_and_another_one_another() -> None:
    assert plan(7) == plan(7)
    assert len({str(plan(seed)) for seed in range(20)}) == 20


@pytest.mark.parametrize("place", sorted(set(chain(*PLACES.values()))))
def test_a_place_where_replicas_are_killed_is_a_function(place: str) -> None:
    assert callable(resolve_name(place))
