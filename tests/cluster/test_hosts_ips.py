"""A list of hosts and nothing else: the same command on every host, which finds itself in the list."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from launcher.config import host_list
from tests.cluster import hosts

REASON = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "hosts are here"),
]

TRAINING = ("-m", "elastic.examples.digits", "--epochs", "2")


def train_on(tmp_path: Path, written: str) -> None:
    """Train on two hosts, named as `written` says; the second of the list serves, and the first has rank 0."""

    async def story() -> None:
        async with hosts.cluster(tmp_path) as cluster:
            small, large = cluster.host(), cluster.host()
            names = {
                "v4": (large.address, small.address),
                "v6": (large.address_v6, small.address_v6),
                "name": ("node-b", "node-a.example.com"),
            }[written]
            if written == "name":  # As Debian does it: one's own name is a loopback address.
                large.knows({"node-b": "127.0.1.1", "node-a.example.com": small.address})
                small.knows({"node-a.example.com": "127.0.1.1", "node-b": large.address})
            command = ("--ips", ",".join(names), "--checkpoint-dir", str(tmp_path / "checkpoints"), *TRAINING)
            agents = []
            for host in (large, small):
                folder = tmp_path / host.space
                folder.mkdir()
                agents.append(await cluster.agent(host, *command, server=False, folder=folder))
            zero, other = agents
            await zero.says(r"generation 1: 2 nodes, world size 2, this is M_id 0 \(rank 0\)")
            job_id = host_list.job_name(names, TRAINING[1])
            await other.says(rf"this host runs etcd for job {job_id} at .*{names[1]}.*:12379")
            await other.says(r"this is M_id 1 \(rank 1\)")
            await zero.says(r"test accuracy \d+")
            for agent in agents:
                assert await agent.ends() == 0
            listed = [(tmp_path / host.space / "log" / "endpoints.log").read_text() for host in (large, small)]
            assert listed[0] == listed[1]
            assert [line.rpartition(":")[0].strip("[]") for line in listed[0].splitlines()[1:]] == list(names)

    asyncio.run(story())


def test_hosts_named_by_address_train_with_the_same_command_and_nothing_else(tmp_path: Path) -> None:
    train_on(tmp_path, "v4")


def test_hosts_named_by_ipv6_address_train_in_the_same_way(tmp_path: Path) -> None:
    train_on(tmp_path, "v6")


def test_hosts_named_by_names_that_are_loopback_addresses_at_home_train_in_the_same_way(tmp_path: Path) -> None:
    train_on(tmp_path, "name")


def test_a_script_that_names_its_hosts_is_typed_on_each_and_the_first_has_the_result(tmp_path: Path) -> None:
    """OneFlow's way: `python`, the same line on both, and the result and the model on the first alone."""

    async def story() -> None:
        async with hosts.cluster(tmp_path) as cluster:
            second, first = cluster.host(), cluster.host()
            line = ("--nodes", f"{first.address},{second.address}", "--ctrl-port", "9988", "--epochs", "10")
            agents = {}
            for host in (second, first):
                folder = tmp_path / host.space
                folder.mkdir()
                agents[host] = await cluster.python(host, "-m", "elastic.examples.oneflow_style", *line, folder=folder)
            for agent in agents.values():
                assert await agent.ends() == 0
            shown = [any("test accuracy" in said for said in agents[host].lines) for host in (first, second)]
            saved = [(tmp_path / host.space / "mlp.pt").exists() for host in (first, second)]
            assert shown == saved == [True, False]

    asyncio.run(story())


def test_a_list_without_this_host_is_refused_with_its_addresses(tmp_path: Path) -> None:
    async def story() -> None:
        async with hosts.cluster(tmp_path) as cluster:
            host = cluster.host()
            agent = await cluster.agent(host, "--ips", "10.213.7.201,10.213.7.202", *TRAINING, server=False)
            await agent.says(
                rf"--ips 10\.213\.7\.201,10\.213\.7\.202 has no address of this machine \({host.address}, "
            )
            assert await agent.ends() == 2

    asyncio.run(story())
