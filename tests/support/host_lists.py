"""Nodes that are started with a list of hosts."""

from __future__ import annotations

from tests.support.agent_process import Node
from tests.support.job_harness import Job

FIRST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"


SWAPPED = f"{SECOND},{FIRST}"
"""A list whose first host is not the one that serves."""


async def static(job: Job, host: str, port: int, *flags: str, ips: str = SWAPPED, ttl_s: int = 10) -> Node:
    """A node of a list of hosts without a server."""
    return await job.node(*("--ips", ips, "--host", host, "--serve-port", str(port)), *flags, server=False, ttl_s=ttl_s)
