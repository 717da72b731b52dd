"""Whole jobs below whose prefix somebody has written so much that no answer of etcd holds it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange, Put
from elastic.store.etcd import EtcdOptions, EtcdStore
from tests.support.etcd_servers import binary_of, one_server
from tests.support.job_harness import Job, Stage

LARGE = b"x" * 1_450_000
"""A little below what etcd takes in one request."""
MANY = 60
LIMIT_S = 60.0
PATIENT = EtcdOptions(try_s=20.0, request_limit_s=60.0)
"""These documents keep etcd and a slow disk busy."""


@pytest.fixture(params=["3.4", "3.5"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    """An etcd of its own, of each version."""
    binary = binary_of(request.param)
    if binary is None:
        pytest.skip(f"there is no etcd {request.param} on this machine")
    server = one_server(binary, tmp_path / "etcd").start()
    yield Stage(server, tmp_path)
    server.kill()


async def write(job: Job, *names: str) -> None:
    """Put `MANY` large documents in all below these names in the job's prefix."""
    store = EtcdStore([job.etcd.endpoint], options=PATIENT)
    for number in range(MANY):
        key = f"{JobKeys(job.job_id).root}{names[number % len(names)]}x{number:02}"
        await store.txn((), [Put(key, LARGE)])
    await store.close()


async def ctl(job: Job, command: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """`elastic-ctl`, run to its end."""
    named = () if command == "list" else ("--job-id", job.job_id)
    argv = (sys.executable, "-m", "launcher.ctl", command, "--elastic-server", job.etcd.endpoint, *named, *flags)
    return await asyncio.to_thread(
        subprocess.run, argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.timeout(180)
def test_sixty_large_documents_stop_neither_a_job_nor_a_node_that_joins_nor_elastic_ctl(
    either: Stage,
) -> None:
    async def story(job: Job) -> None:
        nodes = [await job.node("--np", "2:3", "--scale-up-interval", "0") for _ in range(2)]
        world = await job.world(1, 2)
        await write(job, "members/", "zz/")
        await write(job, "events/")
        await world[0].exits(7)
        again = await job.newest_world(2)
        assert again[0].generation > 1, "the job has formed again after a failure"
        nodes.append(await job.node("--np", "2:3"))
        for worker in await job.newest_world(3):
            assert not worker.ended
        for command in ("status", "list", "events"):
            shown = await ctl(job, command)
            assert shown.returncode == 0, shown.stderr
            assert job.job_id in shown.stdout or command == "events"
        for worker in await job.newest_world(3):
            await worker.exits(0)
        assert [await node.exits() for node in nodes] == [0, 0, 0]
        assert not [line for node in nodes for line in node.lines if "larger than" in line or "more than" in line]
        refused = await ctl(job, "forget", "--yes")
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), "what stands below members/ is a member"
        store = EtcdStore([job.etcd.endpoint], options=PATIENT)
        await store.txn((), [Delete(KeyRange.prefix(JobKeys(job.job_id).members))])
        await write(job, "outcomes/0000000001/", "answers/p/", "leave/", "unknown")
        shown = await ctl(job, "forget", "--yes")
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.startswith(f"Deleted the record of job {job.job_id}: ")
        assert (await store.list(KeyRange.prefix(JobKeys(job.job_id).root), keys_only=True)).entries == ()
        await store.close()

    either.play(story)


def test_a_job_with_more_than_a_reader_holds_is_a_line_of_the_list_and_can_be_forgotten(
    either: Stage,
) -> None:
    async def story(job: Job) -> None:
        node = await job.node("--np", "1")
        (worker,) = await job.world(1, 1)
        await worker.exits(0)
        assert await node.exits() == 0
        await write(job, "zz/a")
        await write(job, "zz/b")
        shown = await ctl(job, "list")
        assert shown.returncode == 0, shown.stderr
        (line,) = [line for line in shown.stdout.splitlines() if line.startswith(job.job_id)]
        assert "unreadable" in line
        assert "etcd holds more than 128 MiB from" in line
        shown = await ctl(job, "status")
        assert (shown.returncode, shown.stdout, shown.stderr.count("\n")) == (4, "", 1)
        assert "etcd holds more than 128 MiB from" in shown.stderr
        assert (await ctl(job, "forget", "--yes")).returncode == 0

    either.play(story)
