"""The schedule of a run of elastic.testing: worlds, their ends, and who is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from elastic.testing.schedule import Failure, NodeFailure, Planned, World, failed_nodes, memberships, worlds_of


def test_numbers_and_steps_say_the_same_as_worlds() -> None:
    assert worlds_of([3, 2, 1, 3], [10, 20, 30], "planned") == (
        World(3, Planned(10)), World(2, Planned(20)), World(1, Planned(30)), World(3),
    )  # fmt: skip


def test_each_change_can_come_its_own_way() -> None:
    assert worlds_of([3, 2, 2, 1], [10, "there", 30], ["node_failure", "failure", "planned"]) == (
        World(3, NodeFailure(10)), World(2, Failure("there")), World(2, Planned(30)), World(1),
    )  # fmt: skip


def test_a_world_that_grows_is_stopped_as_planned_and_not_by_a_loss() -> None:
    assert worlds_of([2, 1, 3], [10, 20], "node_failure") == (
        World(2, NodeFailure(10)),
        World(1, Planned(20)),
        World(3),
    )


def test_who_stays_keeps_the_order_and_newcomers_come_last() -> None:
    worlds = [World(3, NodeFailure(1, nodes=(0,))), World(3, Planned(2, leave=(1,))), World(3, Failure(3)), World(1)]
    assert memberships(worlds) == ((0, 1, 2), (1, 2, 3), (1, 3, 4), (1,))


def test_a_node_that_left_does_not_come_back_under_its_old_number() -> None:
    assert memberships(worlds_of([3, 1, 3], [1, 2], "planned")) == ((0, 1, 2), (0,), (0, 3, 4))


def test_a_loss_that_names_nobody_takes_the_last_nodes_that_the_next_world_has_not() -> None:
    worlds = worlds_of([4, 2, 2, 1], [1, 2, 3], "node_failure")
    assert [failed_nodes(worlds, index) for index in range(4)] == [(2, 3), (1,), (1,), ()]
    assert memberships(worlds) == ((0, 1, 2, 3), (0, 1), (0, 4), (0,))


def test_a_run_can_end_with_a_loss() -> None:
    worlds = worlds_of([World(2, NodeFailure(1))], [], "planned")
    assert failed_nodes(worlds, 0) == (1,)


@pytest.mark.parametrize(
    ("worlds", "change_at", "how", "said"),
    [
        ([], [], "planned", "worlds is empty"),
        ([3, 2], [], "planned", "2 worlds have 1 changes between them, but change_at has 0"),
        ([3, 2, 1], [1, 2], ["node_failure"], "how has 1"),
        ([World(2), 1], [], "planned", "write all worlds as World"),
        ([World(2, Planned(1)), World(1)], [1], "planned", "and no change_at"),
        ([0], [], "planned", "world 0 has 0 nodes"),
        ([World(2), World(1)], [], "planned", "world 0 runs to the end, but is not the last one"),
        ([World(2, NodeFailure(1, nodes=(2,))), World(1)], [], "planned", "world 0 has 2 nodes, counted from 0"),
        ([World(2, Planned(1, leave=(-1,))), World(1)], [], "planned", "world 0 has 2 nodes, counted from 0"),
        ([1, 1], [1], "node_failure", r"name it: NodeFailure\(..., nodes=\(0,\)\)"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    worlds: Sequence[int | World], change_at: list[int], how: Any, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        worlds_of(worlds, change_at, how)
