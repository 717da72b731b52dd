"""Links between hosts: a way that is cut, and a machine without power, prove no death and are noticed by the kernel."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from launcher.net.line_socket import ASK_AGAIN_S, ASKED_MAX, QUIET_S
from tests.cluster import hosts

REASON = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "hosts are here"),
]

ROOT = Path(__file__).parents[2]
PORT = "7123"


def watch(node: str, address: str) -> str:
    return f"watch {node} {address} {PORT}"


async def node(cluster: hosts.Cluster, host: hosts.Host, name: str, *orders: str) -> hosts.Agent:
    """A node there that does not end by itself."""
    words = ("-m", "tests.scripts.link_peer", "0.0.0.0", PORT, name, "secret", *orders)
    made = await cluster.python(host, *words, folder=ROOT)
    await made.says("^port ")
    return made


def test_a_cut_way_is_noticed_and_proves_nothing_and_a_killed_process_is_proven_across_hosts(tmp_path: Path) -> None:
    async def story() -> None:
        async with hosts.cluster(tmp_path) as cluster:
            one, two = cluster.host(), cluster.host()
            other = await node(cluster, two, "n-2", "")
            watcher = await node(cluster, one, "n-1", watch("n-2", two.address))
            place = await watcher.says("^up n-2")
            two.cut()
            async with asyncio.timeout(4.0 * (QUIET_S + ASKED_MAX * ASK_AGAIN_S)):
                place = await watcher.says("^up$", since=place)
            two.mend()
            place = await watcher.says("^up n-2", since=place)
            assert not [line for line in watcher.lines if line.startswith("proof")]
            other.process.kill()
            await watcher.says(f"^proof n-2 1 {two.address}", since=place)

    asyncio.run(story())


def test_a_machine_without_power_proves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with hosts.cluster(tmp_path) as cluster:
            one, two = cluster.host(), cluster.host()
            await node(cluster, two, "n-2", "")
            watcher = await node(cluster, one, "n-1", watch("n-2", two.address_v6))
            place = await watcher.says("^up n-2")
            two.power_off()
            await watcher.says("^up$", since=place)
            await asyncio.sleep(1.0)  # It dials again, and nobody tells that nobody is there.
            assert not [line for line in watcher.lines if line.startswith("proof")]

    asyncio.run(story())
