"""Real training over hosts with their own addresses: one is powered off, one is cut off, one joins."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from launcher.net.line_socket import UNSENT_MAX_MS
from tests.cluster import hosts
from tests.support import gated_training

REASON = hosts.missing()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "hosts are here"),
]

JOB = (
    "--job-id",
    "hosts",
    "--np",
    "3",
    "--lease-ttl",
    "2",
    "--join-window",
    "1",
    "--scale-up-interval",
    "1",
    "--verbose",
)
DIGITS = ("--epochs", "25")
SILENT = r"\(it was silent\)"


def test_a_host_that_is_powered_off_is_replaced_and_training_reaches_its_accuracy(tmp_path: Path) -> None:
    async def story() -> None:
        with gated_training.gate(tmp_path) as gate:
            async with hosts.cluster(tmp_path) as cluster:
                first, second, third = (cluster.host() for _ in range(3))
                training = (*JOB, *gate.words, *DIGITS)
                agents = [await cluster.agent(host, *training) for host in (first, second, third)]
                zero = await _first_of(agents, r"step 100  loss")
                endpoints = (tmp_path / "log" / "endpoints.log").read_text()
                assert all(f"\n{host.address}:" in endpoints for host in (first, second, third))

                lost = next(agent for agent in agents if agent is not zero)
                lost.host.power_off()
                place = await zero.says(r"generation \d+: 2 nodes.*was lost")
                await zero.says(r"step \d+  loss .* world 2", since=place)

                late = await cluster.agent(cluster.host(), *training)
                await late.says(r"generation \d+: 3 nodes")
                gate.open()
                await zero.says(r"step \d+  loss .* world 3", since=place)
                await zero.says(r"test accuracy 9[6-9]")
                for agent in (zero, late):
                    assert await agent.ends() == 0

    asyncio.run(story())


def test_a_host_that_is_cut_off_has_no_worker_left_when_its_place_is_taken_and_comes_back(tmp_path: Path) -> None:
    async def place_is_taken(lost: hosts.Agent) -> None:
        assert lost.host.workers() == []

    asyncio.run(_cut_off(tmp_path, place_is_taken, "--silence-timeout", "0", why=r"\(its lease ended\)"))


def test_a_host_that_is_evicted_has_no_worker_left_when_its_right_to_run_ends_and_comes_back(tmp_path: Path) -> None:
    async def place_is_taken(lost: hosts.Agent) -> None:
        ended = await lost.says(r"lease expired")
        await lost.says(r"stopping: gone", since=ended)
        assert lost.host.workers() == []

    asyncio.run(_cut_off(tmp_path, place_is_taken, "--lease-ttl", "10", why=SILENT))


def test_a_host_is_silent_also_where_the_kernel_has_given_up_its_links_before(tmp_path: Path) -> None:
    silence_s = UNSENT_MAX_MS / 1000 + 2

    async def place_is_taken(lost: hosts.Agent) -> None:
        assert lost.host.workers(), "it was evicted before its right to run ended"

    flags = ("--lease-ttl", "30", "--silence-timeout", f"{silence_s:g}")
    asyncio.run(_cut_off(tmp_path, place_is_taken, *flags, why=SILENT))


async def _cut_off(
    folder: Path, place_is_taken: Callable[[hosts.Agent], Coroutine[None, None, None]], *flags: str, why: str
) -> None:
    """One of three hosts is cut off until the other two train on, and joins them again."""
    with gated_training.gate(folder) as gate:
        async with hosts.cluster(folder) as cluster:
            machines = [cluster.host() for _ in range(3)]
            agents = [await cluster.agent(host, *JOB, *flags, *gate.words, *DIGITS) for host in machines]
            zero = await _first_of(agents, r"step 50  loss")
            lost = next(agent for agent in agents if agent is not zero)
            assert lost.host.workers()

            lost.host.cut()
            place = await zero.says(rf"generation \d+: 2 nodes.*was lost {why}")
            await place_is_taken(lost)
            await zero.says(r"step \d+  loss .* world 2", since=place)

            lost.host.mend()
            back = await lost.says(r"registered again")
            await lost.says(r"generation \d+: 3 nodes", since=back)
            gate.open()
            await zero.says(r"step \d+  loss .* world 3", since=place)
            await zero.says(r"test accuracy 9[6-9]")
            for agent in agents:
                assert await agent.ends() == 0


async def _first_of(agents: list[hosts.Agent], pattern: str) -> hosts.Agent:
    """The agent that shows rank 0's output."""
    tasks = {asyncio.create_task(agent.says(pattern)): agent for agent in agents}
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    task = done.pop()
    task.result()
    return tasks[task]
