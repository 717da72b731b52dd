"""What another local user can do to the folder of the locks that prove a node's death."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.job_harness import QUICK_TTL_S, Job, Stage
from tests.support.other_user import needs_root, seen_by_all, stranger

pytestmark = needs_root

MAKER = 'os.mkdir(sys.argv[1]); print("made", flush=True)'
OWN = f"elastic-launch-{os.getuid()}"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder like /tmp."""
    with seen_by_all() as made:
        made.chmod(0o1777)
        yield made


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    return path


def test_a_folder_for_locks_that_another_user_made_first_stops_no_job_and_deaths_are_proven_elsewhere(
    stage: Stage, shared: Path, runtime: Path
) -> None:
    environ = {"TMPDIR": str(shared), "XDG_RUNTIME_DIR": str(runtime)}

    async def told(job: Job) -> None:
        with stranger(MAKER, str(shared / OWN)) as said:
            assert said == "made"
        first = await job.node("--np", "1", ttl_s=QUICK_TTL_S, environ=environ)
        why = "is not a directory that only you can write"
        await first.says(f"{shared / OWN} {why}; the locks of nodes are in {runtime}/elastic-launch")
        await job.world(1, 1)
        await first.killed()
        second = await job.node("--np", "1", ttl_s=QUICK_TTL_S, environ=environ)
        await job.newest_world(1)
        await second.says(f"{re.escape(first.id)} ran on this host, and all its processes have exited")

    stage.play(told)


def test_an_agent_survives_another_user_who_takes_the_place_of_a_lock_folder_that_was_cleaned_away(
    stage: Stage, shared: Path
) -> None:
    environ = {"TMPDIR": str(shared)}

    async def told(job: Job) -> None:
        flags = ("--np", "1:1", "--etcd-outage-timeout", "3")
        first = await job.node(*flags, ttl_s=QUICK_TTL_S, environ=environ)
        await job.world(1, 1)
        second = await job.node(*flags, ttl_s=QUICK_TTL_S, environ=environ)
        await second.says("joined the job as")
        (shared / OWN).rename(shared / "cleaned-away")
        with stranger(MAKER, str(shared / OWN)) as said:
            assert said == "made"
        await first.killed()
        (worker,) = await job.newest_world(1)
        assert worker.node == second.id
        await worker.exits(0)
        assert await second.exits() == 0

    stage.play(told)
