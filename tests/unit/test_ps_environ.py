"""What the environment says about a process of a parameter-server job."""

from __future__ import annotations

import pytest

from elastic.errors import ConfigError
from elastic.train.ps.environ import Environ, read

SERVER = {
    "PADDLE_TRAINING_ROLE": "PSERVER",
    "PADDLE_CURRENT_IP": "ps1.example.com",
    "PADDLE_PSERVER_IPS": "ps0.example.com, ps1.example.com",
    "PADDLE_TRAINERS": "2",
}
WORKER = {
    "PADDLE_TRAINING_ROLE": "TRAINER",
    "PADDLE_PSERVER_IPS": "ps0.example.com,ps1.example.com",
    "PADDLE_TRAINERS": "2",
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_PSERVER_PORT": "6180",
}


class TestByHand:
    def test_a_server_finds_its_place_by_its_own_name_and_the_port_is_6174(self) -> None:
        assert read(SERVER) == Environ(
            role="server",
            index=1,
            servers=("ps0.example.com:6174", "ps1.example.com:6174"),
            trainers=2,
            current="ps1.example.com:6174",
        )

    def test_a_worker_has_its_id_and_the_port_that_is_given(self) -> None:
        assert read(WORKER) == Environ(
            role="worker", index=1, servers=("ps0.example.com:6180", "ps1.example.com:6180"), trainers=2
        )

    def test_the_id_of_a_worker_is_0_when_nothing_says_it(self) -> None:
        assert read({k: v for k, v in WORKER.items() if k != "PADDLE_TRAINER_ID"}).index == 0

    def test_the_only_server_needs_no_name_of_its_own(self) -> None:
        alone = {k: v for k, v in SERVER.items() if k != "PADDLE_CURRENT_IP"} | {"PADDLE_PSERVER_IPS": "ps0"}
        assert (read(alone).index, read(alone).current) == (0, "ps0:6174")

    def test_addresses_of_ipv6_get_their_brackets(self) -> None:
        found = read(SERVER | {"PADDLE_PSERVER_IPS": "fd00::1,[fd00::2]", "PADDLE_CURRENT_IP": "fd00::2"})
        assert found.servers == ("[fd00::1]:6174", "[fd00::2]:6174")
        assert found.index == 1

    def test_a_list_with_ports_counts_before_hosts(self) -> None:
        given = {"PADDLE_PSERVERS_IP_PORT_LIST": "a:1,a:2", "PADDLE_CURRENT_ENDPOINT": "a:2"}
        found = read(SERVER | given)
        assert (found.servers, found.index, found.current) == (("a:1", "a:2"), 1, "a:2")


class TestUnderTheLauncher:
    def test_its_variables_count_before_the_others(self) -> None:
        found = read(
            WORKER | {"ELASTIC_ROLE": "heter", "ELASTIC_INDEX": "7", "ELASTIC_ROSTER_FILE": "/r", "ELASTIC_JOB_ID": "j"}
        )
        assert (found.role, found.index, found.roster_file, found.job_id) == ("heter", 7, "/r", "j")

    def test_a_worker_that_replaces_another_may_have_a_higher_number_than_there_are_trainers(self) -> None:
        assert read(WORKER | {"PADDLE_TRAINER_ID": "5", "ELASTIC_ROSTER_FILE": "/r"}).index == 5


class TestWrong:
    @pytest.mark.parametrize("given", ["", "WORKER", "pserver"])
    def test_a_role_is_one_of_two(self, given: str) -> None:
        with pytest.raises(ConfigError) as error:
            read(SERVER | {"PADDLE_TRAINING_ROLE": given})
        assert str(error.value) == "PADDLE_TRAINING_ROLE should be one of [TRAINER, PSERVER]"

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"PADDLE_TRAINERS": ""}, "PADDLE_TRAINERS is not set"),
            ({"PADDLE_TRAINERS": "0"}, "PADDLE_TRAINERS is '0'"),
            ({"PADDLE_TRAINERS": "10.0.0.1,10.0.0.2"}, "PADDLE_TRAINERS is '10.0.0.1,10.0.0.2'"),
            ({"PADDLE_PSERVER_IPS": ""}, "PADDLE_PSERVER_IPS"),
            ({"PADDLE_PSERVER_PORT": "70000"}, "PADDLE_PSERVER_PORT is '70000'"),
            ({"PADDLE_CURRENT_IP": ""}, "PADDLE_CURRENT_IP is not set"),
            ({"PADDLE_CURRENT_IP": "elsewhere"}, "elsewhere:6174, is not one of the servers"),
            ({"PADDLE_PSERVERS_IP_PORT_LIST": "a,b"}, "write host:port"),
            ({"ELASTIC_ROLE": "boss"}, "ELASTIC_ROLE is 'boss'"),
        ],
    )
    def test_what_is_wrong_is_named_with_its_mend(self, changed: dict[str, str], said: str) -> None:
        with pytest.raises(ConfigError, match=said.replace("[", r"\[")):
            read(SERVER | changed)

    def test_by_hand_the_id_of_a_worker_is_below_the_number_of_workers(self) -> None:
        with pytest.raises(ConfigError, match="PADDLE_TRAINER_ID is 2, but there are 2"):
            read(WORKER | {"PADDLE_TRAINER_ID": "2"})
