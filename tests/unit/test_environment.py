"""`elastic.env()`: the place of a process, from our variables, torchrun's, or Paddle's alone."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import elastic
from elastic.environment import HINT, Identity, ProcessEnvironment, identity, names_group, read
from elastic.errors import ConfigError
from elastic.train.checkpoint import Checkpoints
from elastic.train.process_group.topology import current_topology, host, rank_and_world
from tests.support.ps_environments import DOCUMENTED, HETEROGENEOUS, environment

PS0 = {
    "PADDLE_TRAINING_ROLE": "PSERVER",
    "PADDLE_CURRENT_IP": "ps0.paddlepaddle.com",
    "PADDLE_PSERVER_IPS": "ps0.paddlepaddle.com,ps1.paddlepaddle.com",
    "PADDLE_TRAINERS": "2",
    "PADDLE_PSERVER_PORT": "6174",
}
PS1 = {**PS0, "PADDLE_CURRENT_IP": "ps1.paddlepaddle.com"}
TRAINER0 = {
    "PADDLE_TRAINING_ROLE": "TRAINER",
    "PADDLE_PSERVER_IPS": "ps0.paddlepaddle.com,ps1.paddlepaddle.com",
    "PADDLE_TRAINERS": "2",
    "PADDLE_TRAINER_ID": "0",
    "PADDLE_PSERVER_PORT": "6174",
}
TRAINER1 = {**TRAINER0, "PADDLE_TRAINER_ID": "1"}
"""The four processes of Paddle's quick start, started by hand."""
GROUP = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
"""What torchrun gives its workers."""


def refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        read(environ)
    text = str(caught.value)
    assert "\n" not in text
    return text


# By hand


@pytest.mark.parametrize(("environ", "index"), [(PS0, 0), (PS1, 1)])
def test_a_server_can_be_started_by_hand(environ: dict[str, str], index: int) -> None:
    found = read(environ)
    assert (found.role, found.index, found.trainers) == ("server", index, 2)
    assert found.servers == ("ps0.paddlepaddle.com:6174", "ps1.paddlepaddle.com:6174")
    assert found.current == f"ps{index}.paddlepaddle.com:6174"
    assert (found.rank, found.local_rank) == (-1, -1)


@pytest.mark.parametrize(("environ", "index"), [(TRAINER0, 0), (TRAINER1, 1)])
def test_a_trainer_can_be_started_by_hand(environ: dict[str, str], index: int) -> None:
    found = read(environ)
    assert (found.role, found.index, found.trainers) == ("worker", index, 2)
    assert found.servers == ("ps0.paddlepaddle.com:6174", "ps1.paddlepaddle.com:6174")
    assert (found.rank, found.world_size, found.local_rank) == (index, 2, 0)
    assert (found.job_id, found.generation, found.roster_file, found.checkpoint_dir) == ("", 0, "", "")


def test_the_defaults_are_those_of_the_quick_start() -> None:
    found = read({"PADDLE_TRAINING_ROLE": "TRAINER", "PADDLE_TRAINERS": "2", "PADDLE_PSERVER_IPS": "ps0"})
    assert (found.index, found.servers) == (0, ("ps0:6174",))
    assert read({"PADDLE_TRAINING_ROLE": "TRAINER", "PADDLE_TRAINERS": "1"}).servers == ()
    assert read({**PS0, "PADDLE_PSERVER_PORT": ""}).current == "ps0.paddlepaddle.com:6174"


@pytest.mark.parametrize("role", ["pserver", "WORKER", "x"])
def test_another_role_is_answered_as_in_the_quick_start(role: str) -> None:
    assert refusal({**PS0, "PADDLE_TRAINING_ROLE": role}) == (
        "PADDLE_TRAINING_ROLE should be one of [TRAINER, PSERVER]"
    )


def test_a_job_with_servers_but_without_a_role_is_answered_so_too() -> None:
    environ = {name: text for name, text in TRAINER0.items() if name != "PADDLE_TRAINING_ROLE"}
    assert refusal(environ) == "PADDLE_TRAINING_ROLE should be one of [TRAINER, PSERVER]"


def test_the_number_of_trainers_must_be_said() -> None:
    environ = {name: text for name, text in TRAINER0.items() if name != "PADDLE_TRAINERS"}
    assert refusal(environ).startswith("PADDLE_TRAINERS is not set")
    assert read({**environ, "PADDLE_TRAINERS_NUM": "3"}).trainers == 3


def test_a_list_of_hosts_is_no_number_of_trainers() -> None:
    cloud = {**TRAINER0, "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2"}
    assert "PADDLE_TRAINERS is '10.0.0.1,10.0.0.2', not a whole number" in refusal(cloud)
    assert read({**cloud, "PADDLE_TRAINERS_NUM": "2"}).trainers == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID is 2, but PADDLE_TRAINERS is 2"),
        ({"PADDLE_TRAINER_ID": "-1"}, "PADDLE_TRAINER_ID is '-1', not a whole number"),
        ({"PADDLE_TRAINER_ID": "²"}, "PADDLE_TRAINER_ID"),
        ({"PADDLE_PSERVER_PORT": "x"}, "PADDLE_PSERVER_PORT is 'x'"),
        ({"PADDLE_PSERVER_PORT": "70000"}, "PADDLE_PSERVER_PORT is 70000; a port is 1 to 65535"),
        ({"PADDLE_PSERVERS_IP_PORT_LIST": "ps0"}, "'ps0' is not host:port"),
    ],
)
def test_a_wrong_variable_is_named(change: dict[str, str], says: str) -> None:
    assert says in refusal({**TRAINER0, **change})


def test_a_server_must_know_which_one_it_is() -> None:
    nameless = {**PS0, "PADDLE_CURRENT_IP": ""}
    assert refusal(nameless).startswith("PADDLE_CURRENT_IP is not set")
    assert refusal({**nameless, "POD_IP": "ps0.paddlepaddle.com"}).startswith("PADDLE_CURRENT_IP is not set")
    text = refusal({**PS0, "PADDLE_CURRENT_IP": "ps7"})
    assert text.startswith("this server is ps7:6174")
    assert "ps0.paddlepaddle.com:6174, ps1.paddlepaddle.com:6174" in text


def test_the_only_server_needs_not_say_who_it_is() -> None:
    found = read({"PADDLE_TRAINING_ROLE": "PSERVER", "PADDLE_TRAINERS": "1", "PADDLE_PSERVER_IPS": "ps0"})
    assert (found.index, found.current) == (0, "ps0:6174")


def test_ipv6_servers_get_their_brackets() -> None:
    found = read({**PS0, "PADDLE_PSERVER_IPS": "fd00::1, [fd00::2]", "PADDLE_CURRENT_IP": "fd00::2"})
    assert found.servers == ("[fd00::1]:6174", "[fd00::2]:6174")
    assert found.index == 1


def test_paddles_own_launcher_is_understood() -> None:
    common = {
        "PADDLE_PSERVERS_IP_PORT_LIST": "127.0.0.1:34008,127.0.0.1:34009",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_HETER_TRAINER_IP_PORT_LIST": "127.0.0.1:18915",
        "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:18913,127.0.0.1:10025",
    }
    server = read({**common, "TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": "34009"})
    assert (server.role, server.index, server.current) == ("server", 1, "127.0.0.1:34009")
    worker = read({**common, "TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": "1"})
    assert (worker.role, worker.rank, worker.world_size) == ("worker", 1, 3)
    assert worker.endpoints == ("127.0.0.1:18913", "127.0.0.1:10025")
    assert read({**common, "TRAINING_ROLE": "HETER_TRAINER"}).rank == 2


# From our launcher


def test_a_server_of_our_launcher_finds_everything() -> None:
    found = read(environment(DOCUMENTED, 1, 0))
    assert dataclasses.asdict(found) == {
        "role": "server",
        "index": 1,
        "servers": ("192.168.0.16:6170", "192.168.0.17:6170"),
        "trainers": 4,
        "current": "192.168.0.17:6170",
        "endpoints": ("192.168.0.16:6171", "192.168.0.16:6172", "192.168.0.17:6171", "192.168.0.17:6172"),
        "rank": -1,
        "local_rank": -1,
        "world_size": 4,
        "local_world_size": 0,
        "master": "",
        "job_id": "j1",
        "node_id": "n17",
        "generation": 7,
        "restarts": 1,
        "checkpoint_dir": "/data/checkpoints/j1",
        "endpoints_file": "/data/log/endpoints.7.log",
        "roster_file": "/tmp/x/roster.json",
        "backend": "",
        "_device": None,
    }


def test_a_worker_of_our_launcher_finds_everything() -> None:
    found = read(environment(DOCUMENTED, 1, 2))
    assert (found.role, found.index, found.rank, found.world_size) == ("worker", 3, 3, 4)
    assert (found.local_rank, found.local_world_size, found.current) == (1, 2, "192.168.0.17:6172")
    assert found.master == "192.168.0.16:5016"


def test_a_heterogeneous_worker_of_our_launcher_ranks_after_the_workers() -> None:
    found = read(environment(HETEROGENEOUS, 1, 1))
    assert (found.role, found.index, found.trainers) == ("heter", 1, 2)
    assert (found.rank, found.world_size, found.local_rank) == (3, 4, 0)


def test_an_unknown_role_of_ours_is_named() -> None:
    assert refusal({"ELASTIC_ROLE": "chief"}).startswith("ELASTIC_ROLE is 'chief'")


# Collective jobs, and none


def test_torchruns_variables_suffice() -> None:
    found = read(
        {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "fd00::1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "x",
        }
    )
    assert (found.role, found.index, found.rank, found.world_size, found.trainers) == ("worker", 3, 3, 4, 4)
    assert (found.local_rank, found.local_world_size, found.servers) == (1, 2, ())
    assert (found.master, found.job_id) == ("[fd00::1]:29500", "x")


def test_where_the_workers_meet_is_a_host_and_a_port_or_nothing() -> None:
    assert read({"RANK": "0", "MASTER_ADDR": "h"}).master == ""
    assert read({"RANK": "0", "MASTER_PORT": "1"}).master == ""


def test_paddles_collective_variables_suffice() -> None:
    found = read({"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2", "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2"})
    assert (found.role, found.rank, found.world_size) == ("worker", 1, 2)


def test_a_rank_beyond_the_world_is_refused() -> None:
    assert refusal({"RANK": "4", "WORLD_SIZE": "4"}).startswith("RANK 4 is not below WORLD_SIZE 4; ")
    assert refusal({"PADDLE_TRAINER_ID": "2", "PADDLE_TRAINERS_NUM": "2"}).startswith(
        "PADDLE_TRAINER_ID 2 is not below"
    )


def test_a_worker_that_has_a_machine_of_its_own_needs_no_local_rank() -> None:
    found = read({**GROUP, "LOCAL_RANK": ""})
    assert (found.rank, found.local_rank, found.world_size) == (3, 0, 4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"RANK": "-1"}, "RANK is '-1', not a whole number"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE is 'four', not a whole number"),
        ({"LOCAL_RANK": "9"}, "LOCAL_RANK 9 is not below WORLD_SIZE 4"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http', not a whole number"),
        ({"ELASTIC_GENERATION": "new"}, "ELASTIC_GENERATION is 'new', not a whole number"),
    ],
)
def test_whoever_asks_gets_the_same_line_with_the_hint_for_a_wrong_variable(
    change: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environ = {**GROUP, **change}
    text = refusal(environ)
    assert text == f"{says}; {HINT}"
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    askers: list[Callable[[], object]] = [elastic.env, elastic.init, rank_and_world, current_topology, host]
    askers.append(functools.partial(Checkpoints, tmp_path))
    for asker in askers:
        with pytest.raises(ConfigError) as caught:
            asker()
        assert str(caught.value) == text


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set"),
        ({"WORLD_SIZE": "2"}, "RANK, MASTER_ADDR and MASTER_PORT are not set"),
        ({"PADDLE_TRAINERS_NUM": "2"}, "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set"),
        ({**GROUP, "MASTER_PORT": ""}, "MASTER_PORT is not set"),
    ],
)
def test_one_of_several_processes_needs_all_that_names_their_group(environ: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigError) as caught:
        names_group(environ)
    assert missing in str(caught.value)
    assert str(caught.value).endswith(HINT)


@pytest.mark.parametrize(("environ", "named"), [({}, False), ({"WORLD_SIZE": "1"}, False), (GROUP, True)])
def test_a_process_that_is_alone_has_no_group_to_join(environ: dict[str, str], named: bool) -> None:
    assert names_group(environ) == named


def test_a_mistake_elsewhere_does_not_hide_from_the_agent_who_this_is() -> None:
    own = {"RANK": "3", "ELASTIC_SLOT": "1", "ELASTIC_GENERATION": "7", "ELASTIC_ROLE": "guest", "WORLD_SIZE": "x"}
    assert identity(own) == Identity(server=False, number=3, slot=1, generation=7)
    assert identity({**own, "ELASTIC_ROLE": "server", "ELASTIC_INDEX": "2"}).number == 2
    assert identity({"RANK": "3", "LOCAL_RANK": "1"}).slot == 1


def test_a_process_that_nobody_told_anything_is_alone() -> None:
    found = read({"HOME": "/home/me"})
    assert (found.role, found.rank, found.local_rank, found.world_size, found.trainers) == ("worker", 0, 0, 1, 1)


# The public name


def test_env_reads_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ELASTIC_ROLE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, text in PS1.items():
        monkeypatch.setenv(name, text)
    found = elastic.env()
    assert isinstance(found, ProcessEnvironment)
    assert (found.role, found.index) == ("server", 1)


def test_a_process_that_has_not_joined_the_others_has_no_backend_and_no_device() -> None:
    found = read(GROUP)
    assert found.backend == ""
    with pytest.raises(ConfigError, match=r"call elastic\.init\(\) first"):
        _ = found.device


def test_what_was_read_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        read(PS0).index = 3  # type: ignore[misc]
