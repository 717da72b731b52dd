"""Each fault of a machine alone, while real training runs over containers: three etcd members and four machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import plays
from tests.cluster.plays import Play
from tests.cluster.stage import Stage

pytestmark = plays.MARKS


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    flags = ("--partition-timeout", "6", "--host-cooldown", "6")
    with plays.play(tmp_path_factory.mktemp("machines"), *flags) as made:
        yield made


@pytest.mark.parametrize("fault", ["agent_killed", "agent_told_to_leave", "machine_killed"])
def test_the_others_train_on_without_a_node_that_is_gone_and_with_its_successor(play: Play, fault: str) -> None:
    play.costs_a_machine(fault)


@pytest.mark.parametrize("fault", ["agent_frozen", "machine_frozen", "cable_pulled", "cut_off", "deaf", "mute"])
def test_the_others_train_on_without_a_node_that_is_silent_and_with_it_when_it_is_back(play: Play, fault: str) -> None:
    play.costs_a_machine(fault)


@pytest.mark.parametrize("fault", ["cut_from_machines", "rejecting"])
def test_the_others_train_on_without_a_node_that_reaches_etcd_and_not_them_and_with_it_when_the_way_is_open(
    play: Play, fault: str
) -> None:
    play.costs_a_machine(fault)


def test_of_two_nodes_that_do_not_reach_each_other_one_is_left_out_at_the_next_start(play: Play) -> None:
    play.costs_a_machine("cut_from_one", shown_by="worker_killed")


@pytest.mark.parametrize("fault", ["worker_killed", "nursery_killed", "out_of_memory"])
def test_workers_that_end_by_themselves_are_started_again_everywhere(play: Play, fault: str) -> None:
    play.costs_a_restart(fault)


def test_a_full_disk_is_named_and_training_goes_on_when_there_is_room_again(play: Play) -> None:
    play.is_survived("disk_full", struck="no space left")


@pytest.mark.parametrize("fault", ["refused_by_etcd", "cut_from_etcd", "no_names", "lossy", "slow"])
def test_a_bad_network_that_training_gets_through_stops_nothing(play: Play, fault: str) -> None:
    play.costs_nothing(fault, steps=100)


@pytest.mark.parametrize("fault", ["cut_from_machines", "cut_from_one"])
def test_a_network_that_is_away_for_a_moment_stops_nothing(play: Play, fault: str) -> None:
    play.costs_nothing(fault, steps=0)


def test_the_job_ends_with_the_numbers_of_an_undisturbed_one_and_leaves_nothing(play: Play) -> None:
    play.act("the end", Stage.finish)
