"""A node all of whose processes are suspended, as in a machine that is suspended or switched off: it sends nothing.

Or only its agent is suspended: its worker continues, and the steps of the others' workers show that.

The nodes of a story have hosts of their own, because the silence of a host that was evicted does not count for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from signal import SIGCONT, SIGSTOP

from elastic.core.agent.links.silence import BEATS_MIN, HEARTBEAT_S
from tests.support.agent_process import Node
from tests.support.ctl_commands import ran_ctl
from tests.support.fake_workers import Worker
from tests.support.job_harness import LONG_TTL_S, QUICK_TTL_S, Job, story

LEASE_S = 30
"""An eviction comes long before it ends, also on a busy machine."""
HEARD_S = 2 * BEATS_MIN * HEARTBEAT_S
"""Only a link that has carried `BEATS_MIN` heartbeats counts, and no event, metric or answer of an agent shows that it
has: so the story waits for twice the time in which they are sent."""
TIMEOUT_S = 1.0
"""The default of `--silence-timeout`."""
REPORTS_STEPS = """
import threading

def report_steps():
    for step in range(1, 1 << 30):
        end().send(messages.Progress(step, 3, {}))
        if no_more_steps.wait(0.05):
            break

no_more_steps = threading.Event()
end()
threading.Thread(target=report_steps, daemon=True).start()
"""


@contextlib.contextmanager
def suspended(node: Node) -> Iterator[None]:
    """Stop the agent, its fork server, what writes its logs, and its workers."""
    pids = node.processes()
    for pid in pids:
        os.kill(pid, SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGCONT)


async def three_hosts(job: Job, *flags: str, ttl_s: int = LEASE_S) -> list[Node]:
    """Three nodes with addresses of their own."""
    flags = ("--np", "3", "--scale-up-interval", "0", *flags)
    return [await job.node("--host", f"127.0.0.{number}", *flags, ttl_s=ttl_s) for number in (1, 2, 3)]


def only_evicted_worker_overlapped(job: Job, new: list[Worker], old: Worker) -> None:
    """The worker of the suspended node is the only one of the world before, and is left to its run deadline."""
    fences = new[0].env["ELASTIC_FENCE"], old.env["ELASTIC_FENCE"]
    assert job.overlaps == ["{} started while {} ran".format(*fences)] * len(new)
    job.overlaps.clear()


async def one_says(job: Job, pattern: str) -> None:
    """Wait until one of the nodes says this."""

    def look() -> bool:
        return any(re.search(pattern, line) for node in job.nodes for line in node.lines)

    await job.told.until(look, f"a node says {pattern!r}")


async def evicted(job: Job, rank: int) -> None:
    """The node of this rank is suspended and evicted, and rejoins."""
    nodes = await three_hosts(job)
    world = await job.world(1, 3)
    await asyncio.sleep(HEARD_S)
    silent = job.node_of(world[rank])
    others = [worker for worker in world if worker is not world[rank]]
    with suspended(silent):
        again = await job.world(2, 2)
        assert [worker.node for worker in again] == [worker.node for worker in others]
        only_evicted_worker_overlapped(job, again, world[rank])
        words = rf"{silent.id} \(host .*\) has sent nothing for \d+\.\d s, and .* cannot connect to it: evicted$"
        await one_says(job, words)
        for worker in again:
            await job.node_of(worker).says(rf"generation 2: 2 nodes.*: {silent.id} was lost \(it was silent\)$")
    await silent.says("registered again")
    await one_says(
        job,
        rf"{silent.id} has registered again; for 60 min, nodes on \S+ are not evicted for silence$",
    )
    whole = await job.newest_world(3)
    assert {worker.env["TORCHELASTIC_RESTART_COUNT"] for worker in whole} == {"0"}, "a loss is free"
    for worker in whole:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0, 0]
    assert sum(line.endswith(": evicted") for node in nodes for line in node.lines) == 1
    told = rf"eviction: \S+ received nothing from {silent.id} .* and cannot connect; .* cannot connect to it either"
    assert len(re.findall(told, (await ran_ctl(job, "events")).out)) == 1


@story
async def test_a_suspended_node_is_evicted_before_its_lease_ends_and_rejoins(job: Job) -> None:
    await evicted(job, 1)


@story
async def test_a_suspended_leader_is_replaced_and_evicted_before_its_lease_ends_and_rejoins(job: Job) -> None:
    await evicted(job, 0)


@story
async def test_a_suspended_agent_is_not_silent_while_its_world_makes_steps_and_is_afterwards(job: Job) -> None:
    await three_hosts(job, "--verbose", ttl_s=LONG_TTL_S)
    world = await job.world(1, 3)
    silent, others = job.node_of(world[1]), [job.node_of(worker) for worker in (world[0], world[2])]
    await asyncio.sleep(HEARD_S)
    for worker in world:
        await worker.obeys("run", REPORTS_STEPS)
    silent.signal(SIGSTOP)
    try:
        await asyncio.sleep(2 * TIMEOUT_S)
        assert not any("has sent nothing" in line for node in others for line in node.lines)
        assert job.newest_generation() == 1
        for worker in world:
            await worker.obeys("run", "no_more_steps.set()")
        await one_says(job, rf"{silent.id} \(host .*\) has sent nothing for .*: evicted$")
        again = await job.world(2, 2)
        assert [job.node_of(worker) for worker in again] == others
        only_evicted_worker_overlapped(job, again, world[1])
    finally:
        silent.signal(SIGCONT)


@story
async def test_without_a_silence_timeout_a_suspended_node_is_lost_only_when_its_lease_ends(job: Job) -> None:
    nodes = await three_hosts(job, "--silence-timeout", "0", ttl_s=QUICK_TTL_S)
    world = await job.world(1, 3)
    await asyncio.sleep(HEARD_S)
    silent = job.node_of(world[1])
    with suspended(silent):
        for node in nodes:
            if node is not silent:
                await node.says(rf"generation 2: 2 nodes.*: {silent.id} was lost \(its lease ended\)")
        only_evicted_worker_overlapped(job, await job.world(2, 2), world[1])
    whole = await job.newest_world(3)
    for worker in whole:
        await worker.exits(0)
    assert [await node.exits() for node in nodes] == [0, 0, 0]
    assert not any("has sent nothing" in line or "evicted" in line for node in nodes for line in node.lines)
