"""Agents of two neighbouring releases work in one job, so that nodes can be upgraded one by one.

This release is the first. So the other one is this release under the next version; once there is another, its own
files are to be put in place of the copy. What each release wrote is read in
`tests/unit/project/test_recorded_documents.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from launcher import __version__
from tests.support.job_harness import Job, story
from tests.support.package_copy import changed_copy


def release(folder: Path, steps: int) -> dict[str, str]:
    """The environment in which elastic-launch has a minor version that is so many steps away."""
    major, minor, patch = __version__.split(".")
    other = f"{major}.{int(minor) + steps}.{patch}"
    line = '__version__ = "{}"'
    return changed_copy(folder, "launcher/__init__.py", line.format(__version__), line.format(other))


@story
async def test_a_node_of_the_next_release_joins_with_a_warning_and_takes_over_when_the_other_is_lost(job: Job) -> None:
    older = await job.node("--np", "2")
    await older.says("joined the job as")
    newer = await job.node("--np", "2", environ=release(job.folder / "newer", 1))
    await newer.says(rf"this node joins although launcher is {re.escape(__version__)} in the job, \S+ on this node")
    await job.world(1, 2)
    await older.killed()
    (worker,) = await job.world(2, 1)
    await worker.exits(0)
    assert await newer.exits() == 0


@story
async def test_a_node_two_releases_away_is_refused_with_both_versions(job: Job) -> None:
    node = await job.node("--np", "1:2")
    await job.world(1, 1)
    far = await job.node("--np", "1:2", environ=release(job.folder / "far", 2))
    await far.says(rf"launcher is {re.escape(__version__)} in job {job.job_id}, \S+ on this node")
    assert await far.exits() == 3
    assert len(job.workers) == 1
    await node.killed()
