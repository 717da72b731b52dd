"""Each fault of etcd alone, while real training runs over containers: three etcd members and four machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import plays
from tests.cluster.plays import Play
from tests.cluster.stage import Stage

pytestmark = plays.MARKS


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with plays.play(tmp_path_factory.mktemp("etcd")) as made:
        yield made


@pytest.mark.parametrize("fault", ["etcd_follower_killed", "etcd_leader_killed", "etcd_leader_frozen"])
def test_a_lost_member_or_leader_of_etcd_costs_the_training_nothing(play: Play, fault: str) -> None:
    play.costs_nothing(fault, steps=120)


@pytest.mark.parametrize("fault", ["etcd_quorum_lost", "etcd_frozen"])
def test_an_etcd_that_answers_nobody_for_longer_than_a_lease_costs_the_training_nothing(play: Play, fault: str) -> None:
    play.costs_nothing(fault, steps=150)


def test_all_of_etcd_away_for_a_minute_stops_nothing_and_when_it_is_back_nothing_restarts(play: Play) -> None:
    play.costs_nothing("etcd_away", steps=plays.ALIVE_STEPS, lasts_s=60.0)


@pytest.mark.parametrize("fault", ["compacted_under_a_watch", "lease_revoked"])
def test_what_people_do_to_etcd_costs_the_training_nothing(play: Play, fault: str) -> None:
    play.costs_nothing(fault, steps=100)


def test_an_etcd_that_comes_back_empty_costs_a_restart_and_the_job_says_what_happened(play: Play) -> None:
    play.costs_a_restart("etcd_emptied")

    async def said(on: Stage) -> None:
        await on.says("or lost its data", since=0)

    play.act("what is said", said)


def test_the_job_ends_with_the_numbers_of_an_undisturbed_one_and_leaves_nothing(play: Play) -> None:
    play.act("the end", Stage.finish)
