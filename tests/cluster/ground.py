"""Hosts with addresses of their own, and a job on them whose workers do what the test tells them.

All that `job_harness` checks holds here, too: no worker starts while one of an older world runs, anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from elastic.store.embedded import find_etcd
from tests.cluster import hosts
from tests.support.agent_process import Node
from tests.support.etcd_servers import Server
from tests.support.fake_workers import Worker
from tests.support.job_harness import Job

IP = shutil.which("ip") or "/sbin/ip"
POLL_S = 0.05
"""The kernel's tables of connections tell nobody when they change."""
LIMIT_S = 60.0


class Ground:
    """A job, and the host of each of its nodes."""

    def __init__(self, cluster: hosts.Cluster, job: Job) -> None:
        self.cluster = cluster
        self.job = job
        self._hosts: dict[str, hosts.Host] = {}

    @property
    def etcd(self) -> hosts.Host:
        """Where etcd runs."""
        return self.cluster.first

    async def nodes(self, count: int, *flags: str, ttl_s: int) -> list[Node]:
        """So many nodes, each on a host of its own."""
        return [await self.node(*flags, ttl_s=ttl_s) for _ in range(count)]

    async def node(self, *flags: str, ttl_s: int) -> Node:
        """A node on a new host."""
        return await self.node_at(self.cluster.host(), *flags, ttl_s=ttl_s)

    async def node_at(self, host: hosts.Host, *flags: str, ttl_s: int) -> Node:
        """A node there."""
        node = await self.job.node(*flags, ttl_s=ttl_s, within=(IP, "netns", "exec", host.space))
        self._hosts[node.name] = host
        return node

    def host(self, node: Node) -> hosts.Host:
        """Where a node runs."""
        return self._hosts[node.name]

    def port(self, node: Node) -> int:
        """Where its agent takes links."""
        (port,) = set(self.host(node).listens())
        return port

    async def until_linked(self, one: Node, other: Node, *, linked: bool = True) -> None:
        """Wait until `one` has a link that it has dialled to `other`, or has none."""
        port = self.port(other)
        async with asyncio.timeout(LIMIT_S):
            while self.host(one).connected(self.host(other), port) is not linked:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)

    async def reject(self, node: Node, others: Sequence[Node]) -> None:
        """A firewall resets what the others send to the agent of this node, from now on."""
        wall = self.cluster.wall(self.host(node))
        for other in others:
            self.host(other).goes_by(wall, self.host(node), self.port(node))

    async def trust(self, others: Sequence[Node]) -> None:
        """Without that firewall."""
        for other in others:
            self.host(other).goes_straight()


@contextlib.asynccontextmanager
async def ground(folder: Path) -> AsyncIterator[Ground]:
    """A ground for one test."""
    async with hosts.cluster(folder) as cluster:
        etcd = Server(find_etcd(), folder, "default", 0, 0, "")
        etcd.endpoint = cluster.server
        with tempfile.TemporaryDirectory(prefix="el-") as meeting:
            async with Job(etcd, folder, Path(meeting) / "socket").open() as job:
                yield Ground(cluster, job)


GROWING = ("--scale-up-interval", "0.1")


def story(told: Callable[[Ground], Awaitable[None]]) -> Callable[[Path], None]:
    """Make a test of a story."""

    def test(tmp_path: Path) -> None:
        async def play() -> None:
            async with ground(tmp_path) as made:
                await told(made)

        asyncio.run(play())

    test.__name__, test.__doc__ = told.__name__, told.__doc__
    return test


def said(nodes: list[Node], text: str) -> list[str]:
    return [line for node in nodes for line in node.lines if text in line]


async def goes_on(world: list[Worker]) -> None:
    """Every worker of this world is there and obeys."""
    for worker in world:
        await worker.obeys("print", "on")
    assert not any(worker.ended for worker in world)
