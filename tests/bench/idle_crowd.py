"""What a thousand idle agents cost their leader, and whether one of them is evicted, with heartbeats and without.

The agents are those of `tests.bench.crowd`, with real links and leases of the default length. The leader has a process
of its own, in which there is no other agent: it registers first, alone, and so leads. The CPU of that process is the
leader's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from elastic.store.embedded import EmbeddedEtcd
from tests.bench import results
from tests.bench.crowd import Links
from tests.bench.crowdparts import Idled, Parts

SILENCE_TIMEOUT_S, LEASE_TTL_S = 1.0, 5.0
"""The defaults."""
SETTLED_S = 5.0
"""After the links are up and the workers run."""
HEARTBEATS_GOAL_PERCENT = 15.0
"""Of a core, of the leader of a thousand agents."""


@dataclass(frozen=True, slots=True)
class Idle:
    """One crowd: the leader's CPU, of a core, what was noted of silence, and the generations that there were."""

    leader_percent: float
    suspicions: int
    cleared: int
    evictions: int
    generations: int

    def words(self) -> str:
        """One line for people."""
        return (
            f"leader's CPU {self.leader_percent:.1f} % of a core; {self.suspicions} suspicions, "
            f"{self.cleared} cleared, {self.evictions} evictions, {self.generations} generations"
        )


async def idle(parts: Parts, size: int, seconds: float, silence_timeout_s: float) -> Idle:
    """Let a crowd of this size stand idle for so long, with an etcd of its own.

    Raises `RuntimeError` if agents failed: then the crowd was not idle.
    """
    async with EmbeddedEtcd() as etcd:
        await parts.make_linked(etcd.endpoint, "idle", size, Links(silence_timeout_s, LEASE_TTL_S))
        try:
            for command in ("connect", "lead", "meet", "run", "linked"):
                await parts.all(command)
            await asyncio.sleep(SETTLED_S)
            found: list[Idled] = await parts.all("idle", seconds)
        finally:
            await parts.all("close")
    if failures := [one.failure for one in found if one.failure]:
        raise RuntimeError(f"agents failed: {'; '.join(failures)}")
    silences = sum((one.silences for one in found), Counter[str]())
    return Idle(
        leader_percent=next(one.cpu_percent for one in found if one.leads),
        suspicions=silences["suspected"],
        cleared=silences["cleared"],
        evictions=silences["evicted"],
        generations=max(one.generation for one in found),
    )


def measure(size: int, seconds: float, processes: int) -> list[results.Figure]:
    """The same crowd with heartbeats and without."""
    with Parts(1 + processes) as parts:
        beating, silent = (asyncio.run(idle(parts, size, seconds, one)) for one in (SILENCE_TIMEOUT_S, 0.0))
    print(f"{size} idle agents, heartbeats: {beating.words()}", flush=True)
    print(f"{size} idle agents, --silence-timeout 0: {silent.words()}", flush=True)
    command = f"python -m tests.bench.scale --sizes '' --torch '' --idle {size}"
    heartbeats = beating.leader_percent - silent.leader_percent
    return [
        results.figure(what, results.OURS, unit, [value], command, goal=goal)
        for what, unit, value, goal in (
            (f"the leader of {size} idle agents: CPU, of a core", "%", beating.leader_percent, None),
            (f"the leader of {size} idle agents: CPU of heartbeats", "%", heartbeats, HEARTBEATS_GOAL_PERCENT),
            (f"{size} idle agents: evictions", "evictions", float(beating.evictions), 0.0),
        )
    ]
