"""How many descriptors an agent and its workers may have, and that changes of the world leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from signal import SIGKILL

import psutil

from elastic.core.kv import KeyRange
from elastic.store.etcd import EtcdStore
from launcher.system import limits
from tests.bench import leakparts
from tests.support.agent_process import Node
from tests.support.job_harness import Job, story

GIVEN = 300


def files_of(pid: int) -> tuple[int, int]:
    """The soft and the hard limit of a process."""
    line = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open"))
    soft, hard = line.split()[3:5]
    return int(soft), int(hard)


@story
async def test_an_agent_may_have_all_descriptors_and_its_workers_what_the_user_gave(job: Job) -> None:
    """Also those of a nursery that was started again."""
    limited = ("/bin/sh", "-c", f'ulimit -Sn {GIVEN}; exec "$@"', "sh")
    node = await job.node("--np", "1", within=limited)
    (worker,) = await job.world(1, 1)
    soft, hard = files_of(node.process.pid)
    assert soft == min(hard, limits.OPEN_MAX) > GIVEN
    assert files_of(node.nursery()) == files_of(worker.pid) == (GIVEN, hard)
    os.kill(node.nursery(), SIGKILL)
    (again,) = await job.world(2, 1)
    assert files_of(node.nursery()) == files_of(again.pid) == (GIVEN, hard)
    os.kill(node.nursery(), SIGKILL)
    await node.says("the fork server died, and its workers with it; starting another in 0.5 s")
    await job.world(3, 1)


@story
async def test_a_warm_worker_has_the_descriptors_that_the_user_gave_too(job: Job) -> None:
    limited = ("/bin/sh", "-c", f'ulimit -Sn {GIVEN}; exec "$@"', "sh")
    await job.node("--np", "1", within=limited, environ={"ELASTIC_NO_PRELOAD": "0"})
    (worker,) = await job.world(1, 1)
    assert files_of(worker.pid)[0] == GIVEN


def held_by(job: Job, node: Node) -> dict[str, float]:
    """What a node, the machine and the store hold for the job, but for what is meant to grow for a while."""
    found = leakparts.of_process(psutil.Process(node.process.pid), "agent")
    found |= leakparts.of_process(psutil.Process(node.nursery()), "nursery")
    found |= leakparts.of_machine(node.mark, job.folder / "tmp", node.folder / "log")
    kinds = ("MB", "log files", "log bytes", "lock files")
    return {name: value for name, value in found.items() if not name.endswith(kinds)}


async def keys_of(job: Job) -> list[str]:
    """The kinds of keys that the job has in etcd, without its bounded history, one for each key."""
    store = EtcdStore([job.etcd.endpoint])
    listing = await store.list(KeyRange.prefix(f"/elastic/{job.job_id}/"), keys_only=True)
    await store.close()
    kinds = [entry.key.split("/")[3] for entry in listing.entries]
    return sorted(kind for kind in kinds if kind not in ("events", "outcomes"))


@story
async def test_twelve_changes_and_nodes_that_are_refused_leave_nothing_behind(job: Job) -> None:
    """In the agent and the nursery that live through them, on the machine, and in etcd."""
    flags = ("--np", "1:2", "--scale-up-interval", "0", "--max-restarts", "100")
    node = await job.node(*flags)
    await job.world(1, 1)
    other = await job.node(*flags)
    generation = 2
    held: list[tuple[dict[str, float], list[str]]] = []
    for change in range(12):
        world = await job.world(generation, 2)
        if change in (3, 11):
            held.append((held_by(job, node), await keys_of(job)))
        await world[0].obeys("progress", change)
        if change % 6 == 5:
            await other.killed()
            await job.world(generation + 1, 1)
            other = await job.node(*flags)
            generation += 1
        elif change % 6 == 2:
            refused = await job.node(*flags, "--nproc-per-node", "2")
            assert await refused.exits() == 3
            await world[1].dies(SIGKILL)
        else:
            await world[change % 2].exits(1)
        generation += 1
    (before, keys), (after, keys_after) = held
    assert after == before
    assert keys_after == keys
