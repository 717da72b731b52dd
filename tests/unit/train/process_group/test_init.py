"""The place of a worker as its environment gives it, and its card."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

import elastic
from elastic.errors import ConfigError
from elastic.train.process_group.init import RankInfo, WorkerContext, gpu_index, rank_info

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_a_worker_of_torchrun_or_of_ours_has_the_place_that_its_variables_say() -> None:
    assert rank_info(TORCHRUN) == RankInfo(rank=3, local_rank=1, world_size=4)


def test_a_plain_script_is_a_world_of_one() -> None:
    assert rank_info({}) == rank_info({"WORLD_SIZE": "1"}) == RankInfo(0, 0, 1)


def test_a_worker_that_has_a_machine_of_its_own_needs_no_local_rank() -> None:
    assert rank_info({**TORCHRUN, "LOCAL_RANK": ""}) == RankInfo(rank=3, local_rank=0, world_size=4)


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not"),
        ({**TORCHRUN, "MASTER_PORT": ""}, "MASTER_PORT is not"),
        ({**TORCHRUN, "RANK": "4"}, "RANK 4 is not below WORLD_SIZE 4"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK is '-1', not a whole number"),
        ({**TORCHRUN, "WORLD_SIZE": "four"}, "WORLD_SIZE is 'four', not a whole number"),
        ({**TORCHRUN, "LOCAL_RANK": "9"}, "LOCAL_RANK 9 is not below WORLD_SIZE 4"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but RANK is not set"),
    ],
)
def test_variables_that_do_not_fit_together_are_one_line_with_the_mend(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError) as told:
        rank_info(environ)
    assert says in str(told.value)
    assert "start the script with elastic-launch" in str(told.value)


def test_the_card_of_a_worker_is_its_place_on_the_node() -> None:
    assert gpu_index(TORCHRUN, rank_info(TORCHRUN), gpus=2) == 1


def test_a_worker_that_sees_its_own_card_only_takes_that_one() -> None:
    own = {**TORCHRUN, "ELASTIC_FENCE": "x/1", "FLAGS_selected_gpus": "0"}
    assert gpu_index(own, rank_info(own), gpus=1) == 0


def test_more_workers_than_cards_are_one_line_that_says_how_many_to_start() -> None:
    environ = {**TORCHRUN, "CUDA_VISIBLE_DEVICES": "5"}
    with pytest.raises(ConfigError, match=r"worker 1 of its node, and 1 card is visible \(CUDA_VISIBLE_DEVICES=5\)"):
        gpu_index(environ, rank_info(environ), gpus=1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"role": "server"}, "elastic: error: role is 'server'"),
        ({"backend": "mpi"}, "elastic: error: backend is 'mpi'; leave it out"),
        ({"timeout_s": 0.0}, "elastic: error: timeout_s is 0"),
    ],
)
def test_a_wrong_argument_of_init_is_one_line(
    given: dict[str, object], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError):
        elastic.init(**given)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert said.startswith(says)
    assert said.count("\n") == 1


def test_a_parameter_server_does_not_join_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINING_ROLE", "PSERVER")
    with pytest.raises(ConfigError, match="this process is a parameter server"):
        elastic.init()


def test_the_context_cannot_be_changed() -> None:
    context = WorkerContext(0, 0, 1, device=cast(Any, "cpu"), backend="gloo", generation=1, restarts=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.rank = 1  # type: ignore[misc]


def test_names_of_the_library_are_loaded_when_they_are_used() -> None:
    assert callable(elastic.config)
    assert callable(elastic.init)
    assert {"config", "init"} <= set(dir(elastic))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = elastic.nothing
