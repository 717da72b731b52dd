"""The warning about an old etcd, where other hosts reach it and only there."""

from __future__ import annotations

import os

from elastic.store.embedded import find_etcd
from launcher.config.store_access import SECRET
from launcher.local import etcd_addresses
from tests.support.agent_process import Node
from tests.support.etcd_servers import SAFE_RELEASE, free_ports, posing
from tests.support.job_harness import Job, story

OLD_RELEASE = "3.5.1"


def on_path(job: Job, version: str) -> dict[str, str]:
    """The environment in which PATH has an etcd of this release."""
    return {"PATH": f"{posing(job.folder, version, find_etcd()).parent}:{os.environ['PATH']}"}


async def ended(job: Job, node: Node) -> list[str]:
    """Its warnings about etcd, once it has completed with one worker."""
    (worker,) = await job.world(1, 1)
    await worker.exits(0)
    assert await node.exits() == 0
    return [line for line in node.lines if "warning: " in line and "etcd" in line]


@story
async def test_an_old_etcd_that_is_opened_to_others_with_a_secret_is_a_warning(job: Job) -> None:
    (port,) = free_ports(1)
    flags = ("--serve", f"0.0.0.0:{port}", "--host", "127.0.0.2", "--np", "1")
    node = await job.node(*flags, server=False, environ=on_path(job, OLD_RELEASE))
    assert await ended(job, node) == [
        f"elastic-launch: warning: {etcd_addresses.old_release(OLD_RELEASE, closed=True)}"
    ]


@story
async def test_an_old_etcd_that_is_opened_to_others_without_a_secret_is_a_warning_beside_the_one_of_that(
    job: Job,
) -> None:
    (port,) = free_ports(1)
    flags = ("--ips", "203.0.113.7,z.invalid", "--host", "203.0.113.7", "--serve-port", str(port), "--np", "1")
    node = await job.node(*flags, server=False, environ=on_path(job, OLD_RELEASE))
    about_release, about_secret = await ended(job, node)
    assert about_release == f"elastic-launch: warning: {etcd_addresses.old_release(OLD_RELEASE, closed=False)}"
    assert SECRET in about_secret


@story
async def test_an_old_etcd_that_stays_on_this_machine_is_no_warning(job: Job) -> None:
    (port,) = free_ports(1)
    node = await job.node("--serve", f"127.0.0.1:{port}", "--np", "1", server=False, environ=on_path(job, OLD_RELEASE))
    assert await ended(job, node) == []


@story
async def test_a_safe_etcd_that_is_opened_to_others_is_no_warning(job: Job) -> None:
    (port,) = free_ports(1)
    flags = ("--serve", f"0.0.0.0:{port}", "--host", "127.0.0.2", "--np", "1")
    node = await job.node(*flags, server=False, environ=on_path(job, SAFE_RELEASE))
    assert await ended(job, node) == []
