"""Hosts that cannot reach each other: the doctor and the waiting line name who, whom, and why, in each direction."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from tests.cluster import hosts

REASON = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "hosts are here"),
]

JOB = ("--job-id", "doctor", "--np", "3", "--lease-ttl", "10")
SCRIPT = ("-m", "elastic.examples.digits")


async def node_of(agent: hosts.Agent) -> str:
    """The id of an agent that has joined."""
    place = await agent.says("joined the job as ")
    return agent.lines[place - 1].rpartition(" ")[2]


def test_the_doctor_finds_all_ways_open_then_a_firewall_in_one_direction_then_one_in_both(tmp_path: Path) -> None:
    async def story() -> None:
        async with hosts.cluster(tmp_path) as cluster:
            machines = [cluster.host() for _ in range(2)]
            agent = await cluster.agent(machines[0], *JOB, *SCRIPT)
            first = await node_of(agent)
            other = await cluster.agent(machines[1], *JOB, *SCRIPT)
            second = await node_of(other)
            await agent.says(rf"this node is {re.escape(machines[0].address)} on eth0; NCCL and gloo use eth0")

            code, said = await cluster.doctor(machines[0], "--job-id", "doctor")
            assert code == 0, said
            assert "ok    reachability: every node can connect to every other (2 nodes)" in said
            assert f"this node is {machines[0].address} on eth0" in said

            (port,) = machines[1].listens()
            machines[1].deafen(port, machines[0])
            code, said = await cluster.doctor(machines[1], "--job-id", "doctor")
            assert code == 1
            assert (
                "fail  reachability: 1 connection is blocked between 2 nodes; open all ports between the nodes" in said
            )
            assert re.search(
                rf"^ +{re.escape(first)} cannot connect to {re.escape(second)}: .* \(the other direction works\)$",
                said,
                re.M,
            ), said

            (port,) = machines[0].listens()
            machines[0].deafen(port, machines[1])
            code, said = await cluster.doctor(machines[1], "--job-id", "doctor")
            assert code == 1
            assert "fail  reachability: 2 connections are blocked between 2 nodes" in said
            assert re.search(
                rf"^ +{re.escape(first)} cannot connect to {re.escape(second)}: "
                r".* \(the other direction is blocked, too\)$",
                said,
                re.M,
            )
            assert re.search(
                rf"^ +{re.escape(second)} cannot connect to {re.escape(first)}: "
                r".* \(the other direction is blocked, too\)$",
                said,
                re.M,
            )

            # The first in line says so by itself, too, while it waits for the third node.
            await agent.says(
                rf"2 of 3 nodes are here; waiting for 1 more; {re.escape(second)} is registered, but this node cannot "
                "connect to it: no answer within 2 s"
            )

            # And each node does, of its neighbours, when workers start.
            third = await cluster.agent(cluster.host(), *JOB, *SCRIPT)
            await agent.says(rf"this node cannot connect to {re.escape(second)}: no answer within 2 s")
            await other.says(rf"this node cannot connect to {re.escape(first)}: no answer within 2 s")
            assert not any("this node cannot connect to" in line for line in third.lines)

    asyncio.run(story())
