"""The arguments of `elastic.init`, and the GPU of a worker."""

from __future__ import annotations

import pytest

import elastic
from elastic.environment import read
from elastic.errors import ConfigError
from elastic.train.process_group.init import gpu_index

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}


def test_the_gpu_of_a_worker_is_its_place_on_the_node() -> None:
    assert gpu_index(TORCHRUN, read(TORCHRUN), gpus=2) == 1


def test_a_worker_that_sees_its_own_gpu_only_takes_that_one() -> None:
    own = {**TORCHRUN, "ELASTIC_FENCE": "x/1", "FLAGS_selected_gpus": "0"}
    assert gpu_index(own, read(own), gpus=1) == 0


def test_more_workers_than_gpus_are_one_line_that_says_how_many_to_start() -> None:
    environ = {**TORCHRUN, "CUDA_VISIBLE_DEVICES": "5"}
    with pytest.raises(ConfigError, match=r"worker 1 of its node, but 1 GPU is visible \(CUDA_VISIBLE_DEVICES=5\)"):
        gpu_index(environ, read(environ), gpus=1)


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


@pytest.mark.parametrize("role", [None, "worker"])
def test_a_parameter_server_does_not_join_the_workers(role: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINING_ROLE", "PSERVER")
    with pytest.raises(ConfigError, match="this process is a parameter server"):
        elastic.init(role)


def test_names_of_the_library_are_loaded_when_they_are_used() -> None:
    assert callable(elastic.launch)
    assert callable(elastic.init)
    assert {"config", "init", "launch"} <= set(dir(elastic))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = elastic.nothing
