"""Which cards a node uses, in which order, and what its workers see of them; nvidia-smi is a stand-in."""

from __future__ import annotations

from tests.support.fake_workers import Worker
from tests.support.job_harness import Job, story
from tests.support.nvidia_smi import VISIBLE, four_cards


def seen(world: list[Worker]) -> list[tuple[str, str, str]]:
    """For each worker: its local rank, the cards that it sees, and which of them is its own."""
    return [(w.env["LOCAL_RANK"], w.env["CUDA_VISIBLE_DEVICES"], w.env["FLAGS_selected_gpus"]) for w in world]


@story
async def test_gpus_3_2_gives_local_rank_0_card_3_and_the_banner_says_m_n_and_world_size(job: Job) -> None:
    node = await job.node("--gpus", "3,2", environ=four_cards(job.folder))
    world = await job.world(1, 2)
    assert seen(world) == [("0", "3,2", "0"), ("1", "3,2", "1")]
    assert {worker.env["CUDA_DEVICE_ORDER"] for worker in world} == {"PCI_BUS_ID"}
    await node.says(r"GPUs of this node, in the order of the local ranks: 3, 2$")
    await node.says(r"generation 1: 1 node of 2 workers, world size 2, this is M_id 0 \(ranks 0-1\): ")


@story
async def test_with_one_card_per_worker_each_sees_its_own_alone(job: Job) -> None:
    await job.node("--gpus=GPU-3, 2", "--isolate-gpus", environ=four_cards(job.folder))
    assert seen(await job.world(1, 2)) == [("0", "GPU-3", "0"), ("1", "2", "0")]


@story
async def test_without_gpus_there_is_a_worker_for_each_card_and_what_they_see_is_left_alone(job: Job) -> None:
    node = await job.node(environ=four_cards(job.folder))
    world = await job.world(1, 4)
    assert seen(world) == [(str(local), VISIBLE, str(local)) for local in range(4)]
    assert "CUDA_DEVICE_ORDER" not in world[0].env
    await node.says("in the order of the local ranks: 0, 1, 2, 3$")


@story
async def test_nodes_may_use_different_cards_but_as_many_and_another_number_is_refused_at_once(job: Job) -> None:
    gpus = four_cards(job.folder)
    first = await job.node("--np", "3", "--gpus", "2,3", environ=gpus)
    await first.says("joined")
    other = await job.node("--np", "3", "--gpus", "0,1,2", environ=gpus)
    line = await other.says("runs 3 workers")
    assert line.string.endswith(
        f"job {job.job_id} runs 2 on every node; use --nproc-per-node 2, or as many GPUs with --gpus"
    )
    assert await other.exits() == 3
    third = await job.node("--np", "3", "--gpus", "0,1", environ=gpus)
    await third.says("joined")
    await job.node("--np", "3", "--gpus", "1,0", environ=gpus)
    world = await job.world(1, 6)
    assert [worker.env["CUDA_VISIBLE_DEVICES"] for worker in world] == ["2,3", "2,3", "0,1", "0,1", "1,0", "1,0"]
    for rank, worker in enumerate(world):
        m_id, n_id = int(worker.env["GROUP_RANK"]), int(worker.env["LOCAL_RANK"])
        assert rank == m_id * int(worker.env["LOCAL_WORLD_SIZE"]) + n_id
        assert worker.env["WORLD_SIZE"] == str(3 * 2)
    await third.says(r"generation 1: 3 nodes of 2 workers, world size 6, this is M_id 1 \(ranks 2-3\): ")


@story
async def test_local_nodes_share_the_named_cards(job: Job) -> None:
    parent = await job.node("--gpus", "3,1,0,2", "--local-nodes", "2", server=False, environ=four_cards(job.folder))
    world = await job.world(1, 4)
    assert sorted(seen(world)) == [("0", "0,2", "0"), ("0", "3,1", "0"), ("1", "0,2", "1"), ("1", "3,1", "1")]
    assert {worker.env["CUDA_DEVICE_ORDER"] for worker in world} == {"PCI_BUS_ID"}
    assert not any("warning" in line for line in parent.lines)


@story
async def test_without_a_driver_there_is_a_cpu_worker_for_each_named_card_and_one_warning(job: Job) -> None:
    parent = await job.node("--gpus", "1, 3", server=False, environ={"PATH": str(job.folder)})
    world = await job.world(1, 2)
    assert {worker.env["CUDA_VISIBLE_DEVICES"] for worker in world} == {""}, "as this test has it"
    for worker in world:
        await worker.exits(0)
    assert await parent.exits() == 0
    (warning,) = (line for line in parent.lines if "warning" in line)
    assert warning.startswith("elastic-launch: warning: --gpus 1,3: no NVIDIA driver on this machine (")
    assert warning.endswith("; 2 workers on the CPU")
