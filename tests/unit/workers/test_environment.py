"""The environment of a worker, as a value."""

from __future__ import annotations

import subprocess

import pytest

from launcher.net.traffic_variables import LIST_BYTES_MAX
from launcher.system.private_env import OURS, SECRETS
from launcher.workers.environment import JobContext
from tests.support.worker_environments import environment, generation


def test_a_worker_finds_what_torchrun_sets() -> None:
    found = environment(generation())
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "10.0.0.0",
        "MASTER_PORT": "5000",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "j1",
        "TORCHELASTIC_ERROR_FILE": "/data/log/error.3.json",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    assert found | expected == found


def test_a_worker_finds_what_paddle_sets() -> None:
    found = environment(generation())
    expected = {
        "PADDLE_TRAINER_ID": "3",
        "PADDLE_TRAINERS_NUM": "4",
        "PADDLE_TRAINER_ENDPOINTS": "10.0.0.0:6000,10.0.0.0:6001,10.0.0.1:6002,10.0.0.1:6003",
        "PADDLE_CURRENT_ENDPOINT": "10.0.0.1:6003",
        "PADDLE_RANK_IN_NODE": "1",
        "PADDLE_GLOBAL_RANK": "3",
        "PADDLE_GLOBAL_SIZE": "4",
        "PADDLE_LOCAL_RANK": "1",
        "PADDLE_LOCAL_SIZE": "2",
        "PADDLE_NNODES": "2",
        "PADDLE_MASTER": "10.0.0.0:5000",
        "FLAGS_selected_gpus": "1",
    }
    assert found | expected == found


def test_paddle_uses_gloo_where_there_is_no_card_unless_the_user_says_otherwise() -> None:
    assert "PADDLE_DISTRI_BACKEND" not in environment(generation())
    assert environment(generation(), gpu_ids=())["PADDLE_DISTRI_BACKEND"] == "gloo"
    mine = {"PADDLE_DISTRI_BACKEND": "xccl"}
    assert environment(generation(), base=mine, gpu_ids=())["PADDLE_DISTRI_BACKEND"] == "xccl"


def test_a_worker_finds_our_own_variables() -> None:
    found = environment(generation())
    expected = {
        "ELASTIC_JOB_ID": "j1",
        "ELASTIC_NODE_ID": "n1",
        "ELASTIC_GENERATION": "7",
        "ELASTIC_FENCE": "abc/7",
        "ELASTIC_ENDPOINTS": found["PADDLE_TRAINER_ENDPOINTS"],
        "ELASTIC_ENDPOINTS_FILE": "/data/log/endpoints.log",
        "ELASTIC_CHECKPOINT_DIR": "/data/checkpoints/j1",
        "PYTHONUNBUFFERED": "1",
    }
    assert found | expected == found


def test_a_worker_finds_what_was_asked_of_our_library() -> None:
    asked = environment(
        generation(),
        resume_from="/data/old",
        allow_rollback=True,
        check_nan=True,
        no_torch_patch=True,
        learned=JobContext(saved='{"step":5}', restore_step=0),
    )
    assert {name: asked.get(name) for name in OURS - {"ELASTIC_CHANNEL"}} == {
        "ELASTIC_RESUME_FROM": "/data/old",
        "ELASTIC_RESTORE_STEP": "0",
        "ELASTIC_ALLOW_ROLLBACK": "1",
        "ELASTIC_CHECK_NAN": "1",
        "ELASTIC_NO_TORCH_PATCH": "1",
        "ELASTIC_SAVED": '{"step":5}',
    }


def test_what_was_not_asked_of_our_library_is_not_there_even_if_an_outer_launcher_said_it() -> None:
    assert not OURS & environment(generation()).keys()
    assert not OURS & environment(generation(), base=dict.fromkeys(OURS, "1")).keys()


def test_ranks_are_dense_and_unique_over_all_nodes() -> None:
    world = generation(nodes=3, slots=2)
    ranks = [environment(world, m_id, n_id)["RANK"] for m_id in range(3) for n_id in range(2)]
    assert ranks == [str(rank) for rank in range(6)]


def test_an_ipv6_master_comes_without_brackets_and_endpoints_with_them() -> None:
    found = environment(generation(host="fd00::{}"), master="[fd00::0]:5000")
    assert found["MASTER_ADDR"] == "fd00::0"
    assert found["PADDLE_CURRENT_ENDPOINT"] == "[fd00::1]:6003"


def test_what_the_user_set_is_kept() -> None:
    mine = {
        "OMP_NUM_THREADS": "8",
        "PYTHONUNBUFFERED": "",
        "NCCL_SOCKET_IFNAME": "ib0",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
        "CUDA_VISIBLE_DEVICES": "3,2",
        "HOME": "/home/me",
    }
    found = environment(generation(), base=mine, interface="eth0")
    assert found | mine == found
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"


def test_the_interface_is_left_to_the_libraries_when_it_is_not_known() -> None:
    assert "NCCL_SOCKET_IFNAME" not in environment(generation())
    assert environment(generation(), interface="eth0")["NCCL_SOCKET_IFNAME"] == "eth0"


def test_threads_are_limited_only_where_workers_share_a_node() -> None:
    assert environment(generation(slots=2))["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment(generation(slots=1), local_rank=0)


def test_what_an_outer_launcher_set_is_replaced() -> None:
    outer = environment(generation(nodes=4), 3, 0)
    assert environment(generation(), base=outer) == environment(generation(), base={})


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_the_agents_secrets_do_not_reach_a_worker(secret: str) -> None:
    assert secret not in environment(generation(), base={secret: "s3cret"})


def test_lists_that_are_too_long_are_left_out_and_the_file_serves() -> None:
    found = environment(generation(nodes=7000, slots=1), 6999, 0, base={"PADDLE_TRAINER_ENDPOINTS": "old"})
    assert "PADDLE_TRAINER_ENDPOINTS" not in found
    assert "ELASTIC_ENDPOINTS" not in found
    assert found["ELASTIC_ENDPOINTS_FILE"]
    assert max(map(len, found.values())) <= LIST_BYTES_MAX
    subprocess.run(["true"], env=found, check=True)


def test_a_process_can_be_started_with_the_longest_lists() -> None:
    found = environment(generation(nodes=3800, slots=1, host="10.100.{}"), 0, 0)
    assert len(found["ELASTIC_ENDPOINTS"]) > LIST_BYTES_MAX * 3 // 4
    subprocess.run(["true"], env={**found, "PATH": "/usr/bin:/bin"}, check=True)


# Cards


def test_every_worker_sees_the_chosen_cards_in_their_order_and_its_local_rank_picks_one() -> None:
    base = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    for local_rank in range(2):
        found = environment(generation(), 1, local_rank, base=base, gpus=("3", "2"), gpu_ids=("3", "2"))
        assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == ("3,2", "PCI_BUS_ID")
        assert found["LOCAL_RANK"] == found["FLAGS_selected_gpus"] == str(local_rank)


def test_with_one_card_per_worker_each_sees_its_own_alone_and_keeps_its_local_rank() -> None:
    for local_rank, gpu in enumerate(("3", "2")):
        found = environment(generation(), 1, local_rank, gpu_ids=("3", "2"), isolate_gpus=True)
        assert (found["CUDA_VISIBLE_DEVICES"], found["CUDA_DEVICE_ORDER"]) == (gpu, "PCI_BUS_ID")
        assert (found["LOCAL_RANK"], found["FLAGS_selected_gpus"]) == (str(local_rank), "0")


@pytest.mark.parametrize("one_gpu", [False, True])
def test_without_chosen_cards_the_users_choice_stays(one_gpu: bool) -> None:
    mine = {"CUDA_VISIBLE_DEVICES": "5", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    found = environment(generation(), base=mine, gpu_ids=(), isolate_gpus=one_gpu)
    assert found | mine == found
    assert (
        not {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}
        & environment(generation(), gpu_ids=(), isolate_gpus=one_gpu).keys()
    )
