"""What a membership change costs as the job grows: time, messages and bytes, with thousands of real agents.

    python -m tests.bench.scale [--sizes 10,100,300,1000,3000] [--rounds 7] [--slots 1] [--torch 4,8,16,32,64]
                                [--chart docs/scale.png]

Every agent is the real one without its nursery (`tests.bench.crowd`): its own connection to etcd, lease, watch and
core; all in one process, the etcd (embedded) beside it. Messages and bytes are etcd's own counts (/metrics), without
the refreshes of leases. torch's dynamic rendezvous over a TCPStore is measured in the same run, each agent a thread.

- meet: all agents are connected, have their lease and a watch that stands, and know that the job is empty; then all
  register in one instant. It ends when the bytes of the generation have arrived at every agent. `connect` is what
  comes before. Counted are registering, following the one before in line, and the document; Python's collector rests.
- lost: one member's process is proven gone. It ends when the bytes of the next generation are with everybody else.
- apply: the processor time that one agent needs to read, check and apply that generation, the median and the worst.
- change: messages from the loss until the workers of the next generation run everywhere: stop, outcomes, go.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from elastic import agentevents as ae
from elastic.store.embedded import EmbeddedEtcd
from tests.bench import rendezvous
from tests.bench.crowd import Agent, Crowd, raise_limits

GOAL_SIZE = 1000
MEET_MAX_S, LOST_MAX_S, APPLY_MAX_S = 2.0, 0.5, 0.010
"""Medians of the rounds with `GOAL_SIZE` agents; of `APPLY_MAX_S` the median of the agents."""
MEMBER_BYTES_MAX, WORKER_BYTES_MAX, FRAME_BYTES_MAX = 40.0, 6.0, 600
"""What a document may cost for each member, for each worker, and besides."""
MESSAGES_MAX = 30.0
"""For each agent, in either change; it does not depend on how many there are."""
LARGE = 1000
"""From this size on one round in three is enough."""


@dataclass(frozen=True, slots=True)
class Change:
    """One membership change as etcd saw it: calls begun, messages in both directions, bytes in both directions."""

    calls: float
    messages: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Measured:
    """One round."""

    connect_s: float
    meet_s: float
    meet_cpu_s: float
    lost_s: float
    change_s: float
    apply_s: float
    apply_worst_s: float
    meet: Change
    lost: Change
    generations: int
    document_bytes: int


class Meter:
    """etcd's own counts. `calls` has them by method for tests that want to be exact."""

    def __init__(self, endpoint: str) -> None:
        """Remember where to ask."""
        self._endpoint = endpoint
        self.calls: dict[str, float] = {}

    def read(self) -> Change:
        """What happened since the last call."""
        with urllib.request.urlopen(f"http://{self._endpoint}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            name, _, value = line.rpartition(" ")
            if not line.startswith("#") and "LeaseKeepAlive" not in line:
                found[name] = float(value)
        before, self._all = getattr(self, "_all", {}), found
        new = {name: value - before.get(name, 0.0) for name, value in found.items()}
        self.calls = {
            match[1]: value
            for name, value in new.items()
            if value and (match := re.match(r'grpc_server_started_total\{grpc_method="(\w+)"', name))
        }
        return Change(
            sum(self.calls.values()),
            sum(value for name, value in new.items() if re.match(r"grpc_server_msg_(sent|received)_total", name)),
            sum(value for name, value in new.items() if re.match(r"etcd_network_client_grpc_\w+_bytes_total", name)),
        )


async def one_round(endpoint: str, job: str, size: int, slots: int, meter: Meter) -> Measured:
    """Let a job of this size meet, lose a member, and go on."""
    crowd = Crowd(endpoint, job, size, slots)
    agents = crowd.agents
    try:
        began = time.monotonic()
        crowd.expect("ready", "bytes", "run")
        for agent in agents:
            agent.start()
        connected = await crowd.wait("ready")
        await asyncio.to_thread(meter.read)
        gc.collect()
        gc.freeze()  # What a thousand agents hold is not looked through again and again while they are measured.
        cpu, met_at = time.process_time(), time.monotonic()
        crowd.begin.set()
        met = await crowd.wait("bytes")
        meet_cpu_s = time.process_time() - cpu
        meet = await asyncio.to_thread(meter.read)
        applied(agents)
        await crowd.wait("run")
        await asyncio.to_thread(meter.read)
        first = max(agent.runs for agent in agents)
        lost_at, lost, changed, change = await lose(crowd, agents[size // 2], meter)
        costs = [agent.apply_s for agent in crowd.agents if agent.apply_s]
        return Measured(
            connect_s=connected - began,
            meet_s=met - met_at,
            meet_cpu_s=meet_cpu_s,
            lost_s=lost - lost_at,
            change_s=changed - lost_at,
            apply_s=statistics.median(costs),
            apply_worst_s=max(costs),
            meet=meet,
            lost=change,
            generations=first,
            document_bytes=agents[0].document_bytes,
        )
    finally:
        gc.unfreeze()
        await crowd.stop()


async def lose(crowd: Crowd, victim: Agent, meter: Meter) -> tuple[float, float, float, Change]:
    """Kill an agent and tell the proposer: when, when all had the next generation, when all ran it, and its cost."""
    agents = crowd.agents
    proposer = next(agent for agent in agents if agent.proposes)
    created = proposer.core.facts.view.members[victim.node].create_revision
    await victim.stop()
    agents.remove(victim)
    crowd.expect("bytes", "run")
    await asyncio.to_thread(meter.read)
    lost_at = time.monotonic()
    proposer.feed(ae.ProvenGone(victim.node, created, victim.core.facts.me.member.host))
    lost = await crowd.wait("bytes")
    applied(agents)
    changed = await crowd.wait("run")
    return lost_at, lost, changed, await asyncio.to_thread(meter.read)


def applied(agents: Sequence[Agent]) -> None:
    """Let every agent read and apply what it has."""
    for agent in agents:
        agent.apply()


async def measure(size: int, slots: int, rounds: int) -> list[Measured]:
    """So many rounds with a fresh etcd."""
    async with EmbeddedEtcd() as etcd:
        meter = Meter(etcd.endpoint)
        return [await one_round(etcd.endpoint, f"scale-{at}", size, slots, meter) for at in range(rounds)]


async def measure_all(sizes: Sequence[int], slots: int, rounds: int, console: Console) -> dict[int, Measured]:
    """The medians for each size. One event loop for all: grpc's queue belongs to the first that a process has."""
    found: dict[int, Measured] = {}
    for size in sizes:
        count = rounds if size <= LARGE else max(1, rounds // 3)
        found[size] = median(await measure(size, slots, count))
        console.print(f"{size} agents: median of {count} rounds, {found[size]}", highlight=False)
    return found


def median(rounds: Sequence[Measured]) -> Measured:
    """The median of each figure."""
    found: dict[str, object] = {}
    for field in fields(Measured):
        values = [getattr(one, field.name) for one in rounds]
        if isinstance(values[0], Change):
            found[field.name] = Change(*(statistics.median(part) for part in zip(*map(astuple, values), strict=True)))
        else:
            found[field.name] = statistics.median(values)
    return Measured(**found)  # type: ignore[arg-type]


def verdicts(found: dict[int, Measured], slots: int) -> list[tuple[str, bool]]:
    """Every goal, and whether it is kept."""
    told: list[tuple[str, bool]] = []
    for size, one in found.items():
        limit = FRAME_BYTES_MAX + size * (MEMBER_BYTES_MAX + WORKER_BYTES_MAX * slots)
        each = max(one.meet.messages, one.lost.messages) / size
        told += [
            (f"{size} agents: {one.generations:g} generation for all joins", one.generations == 1),
            (f"{size} agents: document {one.document_bytes:.0f} B, at most {limit:.0f}", one.document_bytes <= limit),
            (f"{size} agents: {each:.1f} messages each, at most {MESSAGES_MAX:g}", each <= MESSAGES_MAX),
        ]
    if (goal := found.get(GOAL_SIZE)) is not None:
        told += [
            (f"{GOAL_SIZE} agents meet in {goal.meet_s:.2f} s, at most {MEET_MAX_S:g}", goal.meet_s <= MEET_MAX_S),
            (f"one of {GOAL_SIZE} lost: {goal.lost_s:.2f} s, at most {LOST_MAX_S:g}", goal.lost_s <= LOST_MAX_S),
            (f"to apply it: {1e3 * goal.apply_s:.1f} ms, at most {1e3 * APPLY_MAX_S:g}", goal.apply_s <= APPLY_MAX_S),
        ]
    return told


def show(found: dict[int, Measured], peers: dict[int, rendezvous.Met | None], console: Console) -> None:
    """Print the tables."""
    table = Table("agents", "connect s", "meet s", "lost s", "change s", "apply ms", "worst ms", "document B",
                  "messages: meet", "each", "change", "each", "MB: meet", "change", title="elastic-launch")  # fmt: skip
    for size, one in found.items():
        table.add_row(
            str(size), f"{one.connect_s:.2f}", f"{one.meet_s:.3f}", f"{one.lost_s:.3f}", f"{one.change_s:.2f}",
            f"{1e3 * one.apply_s:.2f}", f"{1e3 * one.apply_worst_s:.1f}", f"{one.document_bytes:.0f}",
            f"{one.meet.messages:.0f}", f"{one.meet.messages / size:.1f}",
            f"{one.lost.messages:.0f}", f"{one.lost.messages / size:.1f}",
            f"{one.meet.bytes / 1e6:.2f}", f"{one.lost.bytes / 1e6:.2f}",
        )  # fmt: skip
    console.print(table)
    if peers:
        table = Table("agents", "meet s", "store calls", "each", "MB", "state B", title="torch's dynamic rendezvous")
        for size, met in peers.items():
            if met is None:
                table.add_row(str(size), f"not within {rendezvous.JOIN_LIMIT_S} s")
                continue
            table.add_row(
                str(size), f"{met.seconds:.2f}", str(met.calls), f"{met.calls / size:.1f}", f"{met.bytes / 1e6:.2f}",
                str(met.state_bytes),
            )  # fmt: skip
        console.print(table)


def numbers(text: str) -> list[int]:
    """Numbers with commas; "" is none."""
    return [int(part) for part in text.split(",") if part]


def main() -> int:
    """Measure, print, draw; 0 if every goal is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=numbers, default="10,100,300,1000,3000")
    parser.add_argument("--torch", type=numbers, default="4,8,16,32,64")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--chart", type=Path)
    args = parser.parse_args()

    raise_limits()
    console = Console(width=150)
    found = asyncio.run(measure_all(args.sizes, args.slots, args.rounds, console))
    peers = {size: rendezvous.meet(size) for size in args.torch}
    show(found, peers, console)
    if args.chart is not None:
        from tests.bench.scalechart import draw

        draw(found, peers, args.chart)
        console.print(f"chart: {args.chart}")
    told = verdicts(found, args.slots)
    for text, kept in told:
        console.print(f"{'kept' if kept else 'BROKEN'}: {text}", highlight=False)
    return 0 if all(kept for _, kept in told) else 1


if __name__ == "__main__":
    sys.exit(main())
