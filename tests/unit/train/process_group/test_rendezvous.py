"""Waiting for other workers, as values."""

from __future__ import annotations

import pytest

from elastic.train.process_group.rendezvous import PausableDeadline, missing_in_words, rendezvous

GOOD = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "h", "MASTER_PORT": "1234"}


def test_patience_ends_after_its_time() -> None:
    patience = PausableDeadline(10.0, 100.0)
    assert patience.spend(109.0, preparing=False)
    assert not patience.spend(110.0, preparing=False)


def test_patience_does_not_run_while_somebody_prepares() -> None:
    patience = PausableDeadline(10.0, 0.0)
    assert patience.spend(5.0, preparing=False)
    assert patience.spend(5000.0, preparing=True)
    assert patience.spend(5004.0, preparing=False)
    assert not patience.spend(5005.0, preparing=False)


def test_the_missing_are_named_with_what_they_do() -> None:
    assert missing_in_words({2: "downloading", 3: ""}) == "rank 2 (downloading), rank 3"
    assert missing_in_words({0: ""}, 5) == "rank 0 and 5 more"


@pytest.mark.parametrize("name", sorted(GOOD))
def test_without_torchruns_variables_there_is_nobody_to_meet(name: str) -> None:
    assert rendezvous({**GOOD, name: ""}, None) is None
    assert rendezvous({key: text for key, text in GOOD.items() if key != name}, None) is None


def test_a_store_that_outlives_the_workers_has_a_place_for_each_of_their_lives() -> None:
    first = rendezvous(GOOD, None)
    assert first is not None
    assert (first.rank, first.world_size, first.port, first.agent_hosts) == (1, 3, 1234, False)
    lives = [
        rendezvous({**GOOD, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": count}, None)
        for count in "01"
    ]
    assert len({life.attempt for life in lives if life is not None}) == 2
