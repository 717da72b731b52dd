"""The environment of a process of a parameter-server job, its roster and its log's name, as values."""

from __future__ import annotations

import json
import subprocess

from elastic import environment as environment_module
from elastic.core.model import ChangeReason, Generation, GenerationMember
from launcher.config.config import Config
from launcher.net.traffic_variables import LIST_BYTES_MAX
from launcher.system.private_env import SECRETS
from launcher.workers.environment import CollectiveContext, LaunchContext, worker_environment
from launcher.workers.ps_environment import cluster_spec_document
from tests.support.ps_environments import (
    DOCUMENTED,
    HETEROGENEOUS,
    SERVER,
    WORKER,
    environment,
    generation,
    place,
)

# What Paddle's scripts read


def test_a_server_finds_what_the_quick_start_names() -> None:
    found = environment(DOCUMENTED, 1, 0)
    expected = {
        "PADDLE_TRAINING_ROLE": "PSERVER",
        "TRAINING_ROLE": "PSERVER",
        "PADDLE_PSERVER_IPS": "192.168.0.16,192.168.0.17",
        "PADDLE_PSERVER_PORT": "6170",
        "PADDLE_PSERVERS_IP_PORT_LIST": "192.168.0.16:6170,192.168.0.17:6170",
        "PADDLE_TRAINERS": "4",
        "PADDLE_TRAINERS_NUM": "4",
        "PADDLE_CURRENT_IP": "192.168.0.17",
        "PADDLE_CURRENT_ENDPOINT": "192.168.0.17:6170",
        "POD_IP": "192.168.0.17",
        "PADDLE_PORT": "6170",
        "PADDLE_TRAINER_ENDPOINTS": "192.168.0.16:6171,192.168.0.16:6172,192.168.0.17:6171,192.168.0.17:6172",
        "PADDLE_WITH_GLOO": "0",
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": "192.168.0.16:5016",
    }
    assert found | expected == found
    assert "PADDLE_TRAINER_ID" not in found


def test_the_workers_ids_are_dense_and_unique_over_all_nodes() -> None:
    found = [environment(DOCUMENTED, m_id, task) for m_id in range(2) for task in (1, 2)]
    assert [one["PADDLE_TRAINER_ID"] for one in found] == ["0", "1", "2", "3"]
    assert {one["PADDLE_TRAINERS"] for one in found} == {"4"}
    assert {one["PADDLE_TRAINING_ROLE"] for one in found} == {"TRAINER"}
    assert [one["PADDLE_CURRENT_ENDPOINT"] for one in found] == found[0]["PADDLE_TRAINER_ENDPOINTS"].split(",")
    assert "PADDLE_CURRENT_IP" not in found[0]


def test_a_heterogeneous_worker_has_its_own_role_and_list() -> None:
    found = environment(HETEROGENEOUS, 1, 1)
    expected = {
        "PADDLE_TRAINING_ROLE": "HETER_TRAINER",
        "TRAINING_ROLE": "HETER_TRAINER",
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": "192.168.0.16:6172,192.168.0.17:6172",
        "PADDLE_HETER_TRAINER_IP_PORT_LIST": "192.168.0.16:6171,192.168.0.17:6171",
        "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST": "192.168.0.16:6171,192.168.0.17:6171",
    }
    assert found | expected == found
    assert "PADDLE_HETER_TRAINER_IP_PORT_LIST" not in environment(DOCUMENTED, 0, 0)


def test_servers_on_several_ports_have_no_common_one() -> None:
    one_machine = generation(place(1, (SERVER, 0), (SERVER, 1), (WORKER, 0), ports=(6170, 6171, 6172)))
    found = environment(one_machine, 0, 2, base={"PADDLE_PSERVER_PORT": "6174"})
    assert "PADDLE_PSERVER_PORT" not in found
    assert found["PADDLE_PSERVERS_IP_PORT_LIST"] == "192.168.0.1:6170,192.168.0.1:6171"


def test_ipv6_has_brackets_only_before_a_port() -> None:
    found = environment(generation(place(1, (SERVER, 0), (WORKER, 0), host="fd00::{}")), 0, 0, master="[fd00::1]:5001")
    assert found["PADDLE_CURRENT_ENDPOINT"] == found["PADDLE_PSERVERS_IP_PORT_LIST"] == "[fd00::1]:6170"
    assert found["PADDLE_PSERVER_IPS"] == found["PADDLE_CURRENT_IP"] == found["POD_IP"] == "fd00::1"


# What torch reads


def test_workers_have_torchruns_variables() -> None:
    found = environment(DOCUMENTED, 1, 2)
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "ROLE_NAME": "worker",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "192.168.0.16",
        "MASTER_PORT": "5016",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "TORCHELASTIC_RUN_ID": "j1",
    }
    assert found | expected == found


def test_heterogeneous_workers_come_after_the_workers_in_the_order_of_ranks() -> None:
    found = [environment(HETEROGENEOUS, m_id, task) for m_id in range(2) for task in (1, 2)]
    assert [(one["ELASTIC_ROLE"], one["RANK"]) for one in found] == [
        ("heter", "2"),
        ("worker", "0"),
        ("heter", "3"),
        ("worker", "1"),
    ]
    assert [one["LOCAL_RANK"] for one in found] == ["0", "1", "0", "1"]
    assert {one["WORLD_SIZE"] for one in found} == {"4"}
    assert [one["ROLE_RANK"] for one in found] == ["0", "0", "1", "1"]


def test_a_server_has_no_rank_even_if_an_outer_launcher_left_one() -> None:
    worker = environment(DOCUMENTED, 0, 1)
    found = environment(DOCUMENTED, 0, 0, base=worker)
    assert found == environment(DOCUMENTED, 0, 0)
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "PADDLE_TRAINER_ID"} & set(found)


def test_torchs_store_is_on_the_machine_of_worker_0_because_rank_0_opens_it() -> None:
    world = generation(place(1, (SERVER, 0)), place(2, (WORKER, 0)), place(3, (WORKER, 1)))
    found = [environment(world, m_id, 0, master="192.168.0.1:8000") for m_id in (1, 2)]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("192.168.0.2", "5102")}
    assert {one["PADDLE_GLOO_HTTP_ENDPOINT"] for one in found} == {"192.168.0.1:8000"}


def test_every_index_is_below_its_count_while_a_seat_is_vacant() -> None:
    world = generation(place(1, (SERVER, 1)), place(2, (WORKER, 0), (WORKER, 3)))
    found = environment(world, 1, 1)
    assert (found["PADDLE_TRAINER_ID"], found["PADDLE_TRAINERS"], found["RANK"], found["WORLD_SIZE"]) == (
        "3",
        "4",
        "3",
        "4",
    )
    assert found["PADDLE_PSERVERS_IP_PORT_LIST"] == ",192.168.0.1:6170"
    assert found["PADDLE_PSERVER_IPS"] == ",192.168.0.1"


def test_workers_share_the_cards_that_the_agent_sees() -> None:
    world = generation(place(1, (SERVER, 0), *((WORKER, index) for index in range(4))))
    picked = [
        environment(world, 0, task, base={"CUDA_VISIBLE_DEVICES": "5,7"})["FLAGS_selected_gpus"] for task in (1, 2, 3)
    ]
    assert picked == ["0", "1", "0"]
    assert environment(world, 0, 4)["FLAGS_selected_gpus"] == "3"
    assert "FLAGS_selected_gpus" not in environment(world, 0, 0)


# Ours


def test_a_process_finds_our_own_variables() -> None:
    found = environment(DOCUMENTED, 1, 2)
    expected = {
        "ELASTIC_ROLE": "worker",
        "ELASTIC_INDEX": "3",
        "ELASTIC_ROSTER_FILE": "/tmp/x/roster.json",
        "ELASTIC_JOB_ID": "j1",
        "ELASTIC_NODE_ID": "n17",
        "ELASTIC_GENERATION": "7",
        "ELASTIC_FENCE": "abc/7",
        "ELASTIC_CHECKPOINT_DIR": "/data/checkpoints/j1",
        "ELASTIC_ENDPOINTS_FILE": "/data/log/endpoints.7.log",
    }
    assert found | expected == found


def test_what_the_user_set_is_kept_and_secrets_are_not() -> None:
    mine = {"PADDLE_WITH_GLOO": "1", "OMP_NUM_THREADS": "8", "HOME": "/home/me", "GLOO_SOCKET_IFNAME": "ib0"}
    found = environment(DOCUMENTED, 0, 1, base={**mine, **dict.fromkeys(SECRETS, "s3cret")}, interface="eth0")
    assert found | mine == found
    assert not SECRETS & set(found)
    assert found["NCCL_SOCKET_IFNAME"] == "eth0"


def test_threads_are_limited_only_where_processes_share_a_node() -> None:
    assert environment(DOCUMENTED, 0, 0)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment(generation(place(1, (SERVER, 0))), 0, 0)


def test_a_collective_job_started_by_such_a_process_knows_nothing_of_its_role() -> None:
    world = Generation(
        g=1,
        run=1,
        leader="",
        why=ChangeReason.FIRST,
        reason="",
        slots=1,
        members=(GenerationMember("n", "h", (5000,), (6000,)),),
    )
    told = LaunchContext(
        base=environment(DOCUMENTED, 0, 0),
        config=Config(script="train.py", job_id="inner"),
        generation=world,
        master="h:5000",
        restarts=0,
        restarts_max=3,
        node_id="n",
        incarnation="i",
        endpoints_file="e",
    )
    found = worker_environment(CollectiveContext(launch=told, m_id=0, local_rank=0, error_file="x", progress_file="y"))
    place = environment_module.read(found)
    assert (place.role, place.rank, place.world_size, place.servers, place.roster_file) == ("worker", 0, 1, (), "")
    assert found["PADDLE_TRAINERS"] == "h"


def test_lists_that_are_too_long_are_left_out_and_the_roster_serves() -> None:
    many = generation(place(1, (SERVER, 0)), *(place(2 + index, (WORKER, index)) for index in range(4000)))
    found = environment(many, 4000, 0, base={"PADDLE_TRAINER_ENDPOINTS": "old"})
    assert "PADDLE_TRAINER_ENDPOINTS" not in found
    assert found["PADDLE_TRAINERS"] == "4000"
    assert max(map(len, found.values())) <= LIST_BYTES_MAX
    subprocess.run(["true"], env={**found, "PATH": "/usr/bin:/bin"}, check=True)
    assert len(json.loads(cluster_spec_document(many))["workers"]) == 4000


# The roster and the logs


def test_the_roster_says_who_is_where_by_index() -> None:
    assert json.loads(cluster_spec_document(HETEROGENEOUS)) == {
        "generation": 7,
        "revision": 3,
        "servers": ["192.168.0.16:6170", "192.168.0.17:6170"],
        "workers": [
            {"index": 0, "endpoint": "192.168.0.16:6172"},
            {"index": 1, "endpoint": "192.168.0.17:6172"},
        ],
        "heters": [
            {"index": 0, "endpoint": "192.168.0.16:6171"},
            {"index": 1, "endpoint": "192.168.0.17:6171"},
        ],
    }


def test_a_vacant_seat_of_a_server_keeps_its_place_in_the_roster() -> None:
    world = generation(place(1, (SERVER, 2)), place(2, (SERVER, 0)), place(3, (WORKER, 4)))
    found = json.loads(cluster_spec_document(world))
    assert found["servers"] == ["192.168.0.2:6170", "", "192.168.0.1:6170"]
    assert found["workers"] == [{"index": 4, "endpoint": "192.168.0.3:6170"}]
    assert found["heters"] == []


def test_the_secret_of_an_outer_job_reaches_no_process() -> None:
    outer = {"ELASTIC_PS_SECRET": "of the outer job"}
    assert environment(DOCUMENTED, 0, 0, base=outer)["ELASTIC_PS_SECRET"] == ""
