"""What a membership change costs as the job grows: time, messages and bytes, with thousands of real agents.

    python -m tests.bench.scale [--sizes 10,100,300,1000,3000] [--rounds 7] [--slots 1] [--torch 4,8,16,32,64,128]
                                [--torch_rounds 7] [--processes N] [--idle 1000] [--idle_s 60]
                                [--results docs/bench]

Every agent is the real one without its nursery (`tests.bench.crowd`): its own connection to etcd, lease, watch and
core. They are dealt out to as many processes as there are cores (`--processes`), the etcd (embedded) beside them.
Messages and bytes are etcd's own counts (/metrics), without the refreshes of leases. torch's dynamic rendezvous over a
TCPStore is measured after that, each round in a process of its own in which each agent is a thread. `--sizes ""`
measures torch's alone. Last of all, so many agents (`--idle`) with links stand idle (`tests.bench.idle_crowd`).

- meet: all agents are connected, have their lease and a watch that stands, and know that the job is empty; then all
  register in one instant. It ends when the bytes of the generation have arrived at every agent. `connect` is what
  comes before. Counted are registering and the document; Python's collector rests.
- lost: one member's process is proven gone. It ends when the bytes of the next generation are with everybody else.
- the leader lost: the same once more with the leader, whose death those that watch it see over their links. Each
  try to take its place is a put, so there must be few of them.
- apply: the processor time that one agent needs to read, check and apply that generation, the median and the worst.
- change: from the loss until the workers of the next generation run everywhere: bytes, apply, stop, outcomes, go. Here
  all agents take turns on the cores of this machine, so it is about as long as the sum of what each of them computes,
  over the number of cores. The messages of a change are those of this time.

The figures of `GOAL_SIZE` and larger jobs go to docs/bench/scale.json. Those of all sizes, also of torch's that did not
meet in every round, go to docs/bench/scale_sizes.json for the picture.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from elastic.core.generation_codec import PLAIN_BYTES_MAX
from elastic.store.embedded import EmbeddedEtcd
from tests.bench import idle_crowd, rendezvous, results
from tests.bench.against import MEETING
from tests.bench.crowd import raise_limits
from tests.bench.crowdparts import Met, Parts, Ran

GOAL_SIZE = 1000
MEET_MAX_S, LOST_MAX_S, LEADER_LOST_MAX_S, CHANGE_MAX_S, APPLY_MS_MAX = 2.0, 0.5, 0.8, 3.6, 2.5
"""Medians of the rounds with `GOAL_SIZE` agents; of `APPLY_MS_MAX` the median of the agents.

When the leader is lost every agent hears of two documents, the next leader and the next generation.
"""
MEMBER_BYTES_MAX, WORKER_BYTES_MAX, FRAME_BYTES_MAX = 40.0, 6.0, 600
"""What a compressed document may cost for each member, for each worker, and besides."""
MESSAGES_MAX = 30.0
"""For each agent, in each change; it does not depend on how many there are."""
LEADS_MAX = 16
"""Agents that try to take the place of a leader that was lost, however many there are."""
LARGE = 1000
"""Beyond this size one round is enough."""
TORCH_SIZE_MIN = 32
"""The smallest size of torch's rendezvous that docs/concepts/benchmarks.md shows."""


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
    leader_lost_s: float
    leader_change_s: float
    leads: int
    apply_s: float
    apply_worst_s: float
    meet: Change
    lost: Change
    leader_lost: Change
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


async def one_round(parts: Parts, endpoint: str, job: str, size: int, slots: int, meter: Meter) -> Measured:
    """Let a job of this size meet, lose a member, and go on."""
    await parts.make(endpoint, job, size, slots)
    try:
        began = time.monotonic()
        connected = max(await parts.all("connect"))
        await asyncio.to_thread(meter.read)
        met_at = time.monotonic()
        met: list[Met] = await parts.all("meet")
        meet = await asyncio.to_thread(meter.read)
        first: list[Ran] = await parts.all("run")
        await asyncio.to_thread(meter.read)
        leader = next(number for number in await parts.all("leader") if number is not None)
        lost = await lose(parts, size // 2 + (leader == size // 2), meter)
        leader_lost = await lose(parts, leader, meter)
        costs = [cost for part in lost.ran for cost in part.apply_s]
        return Measured(
            connect_s=connected - began,
            meet_s=max(part.at for part in met) - met_at,
            meet_cpu_s=sum(part.cpu_s for part in met),
            lost_s=lost.lost_s,
            change_s=lost.change_s,
            leader_lost_s=leader_lost.lost_s,
            leader_change_s=leader_lost.change_s,
            leads=leader_lost.leads,
            apply_s=statistics.median(costs),
            apply_worst_s=max(costs),
            meet=meet,
            lost=lost.change,
            leader_lost=leader_lost.change,
            generations=max(part.generation for part in first),
            document_bytes=max(part.document_bytes for part in lost.ran),
        )
    finally:
        await parts.all("close")


@dataclass(frozen=True, slots=True)
class Loss:
    """What it cost to lose an agent; `leads` is how many tried to lead."""

    lost_s: float
    change_s: float
    change: Change
    leads: int
    ran: list[Ran]


async def lose(parts: Parts, number: int, meter: Meter) -> Loss:
    """Kill an agent, and let the others go on."""
    victim = await parts.kill(number)
    await parts.all("expect")
    await asyncio.to_thread(meter.read)
    lost_at = time.monotonic()
    await parts.all("prove", victim)
    lost = max(await parts.all("heard"))
    ran: list[Ran] = await parts.all("run")
    change = await asyncio.to_thread(meter.read)
    leads = sum(sent["lead", done] for sent in await parts.all("sent") for done in (True, False))
    return Loss(lost - lost_at, max(part.at for part in ran) - lost_at, change, leads, ran)


async def measure(parts: Parts, size: int, slots: int, rounds: int) -> list[Measured]:
    """So many rounds with a fresh etcd."""
    async with EmbeddedEtcd() as etcd:
        meter = Meter(etcd.endpoint)
        return [await one_round(parts, etcd.endpoint, f"scale-{at}", size, slots, meter) for at in range(rounds)]


async def measure_all(
    parts: Parts, sizes: Sequence[int], slots: int, rounds: int, console: Console
) -> dict[int, list[Measured]]:
    """The rounds of each size."""
    found: dict[int, list[Measured]] = {}
    for size in sizes:
        count = rounds if size <= LARGE else 1
        found[size] = await measure(parts, size, slots, count)
        console.print(f"{size} agents: median of {count} rounds, {median(found[size])}", highlight=False)
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
    """What holds for every size, and whether it does."""
    told: list[tuple[str, bool]] = []
    for size, one in found.items():
        limit = max(PLAIN_BYTES_MAX, FRAME_BYTES_MAX + size * (MEMBER_BYTES_MAX + WORKER_BYTES_MAX * slots))
        each = max(one.meet.messages, one.lost.messages, one.leader_lost.messages) / size
        told += [
            (f"{size} agents: {one.generations:g} generation for all joins", one.generations == 1),
            (f"{size} agents: document {one.document_bytes:.0f} B, at most {limit:.0f}", one.document_bytes <= limit),
            (f"{size} agents: {each:.1f} messages each, at most {MESSAGES_MAX:g}", each <= MESSAGES_MAX),
            (f"{size} agents: {one.leads:g} try to lead, at most {LEADS_MAX}", one.leads <= LEADS_MAX),
        ]
    return told


def figures(rounds: dict[int, list[Measured]], peers: dict[int, list[rendezvous.Met | None]]) -> list[results.Figure]:
    """Return what docs/concepts/benchmarks.md shows: the sizes from the one with goals on, and torch's that met."""
    told: list[results.Figure] = []
    if measured := rounds.get(GOAL_SIZE):
        command = f"python -m tests.bench.scale --sizes {GOAL_SIZE}"
        each = [one.meet.messages / GOAL_SIZE for one in measured]
        for what, unit, values, goal in (
            (f"{GOAL_SIZE} agents meet", "s", [one.meet_s for one in measured], MEET_MAX_S),
            (f"one of {GOAL_SIZE} lost", "s", [one.lost_s for one in measured], LOST_MAX_S),
            (running_again(GOAL_SIZE), "s", [one.change_s for one in measured], CHANGE_MAX_S),
            (f"the leader of {GOAL_SIZE} lost", "s", [one.leader_lost_s for one in measured], LEADER_LOST_MAX_S),
            (f"one of {GOAL_SIZE} lost: CPU of one agent", "ms", [1e3 * one.apply_s for one in measured], APPLY_MS_MAX),
            (f"{GOAL_SIZE} agents meet: messages of each", "messages", each, MESSAGES_MAX),
        ):
            told.append(results.figure(what, results.OURS, unit, values, command, goal=goal))
    for size, larger in rounds.items():
        if size > GOAL_SIZE:
            command = f"python -m tests.bench.scale --sizes {size}"
            lost, change = [one.lost_s for one in larger], [one.change_s for one in larger]
            told.append(results.figure(f"one of {size} lost", results.OURS, "s", lost, command))
            told.append(results.figure(running_again(size), results.OURS, "s", change, command))
    for size, found in peers.items():
        met = [one.seconds for one in found if one is not None]
        if size >= TORCH_SIZE_MIN and met and len(met) == len(found):
            command = f"python -m tests.bench.scale --sizes '' --torch {size}"
            told.append(results.figure(f"{size} agents meet", MEETING, "s", met, command))
    return told


def sizes(rounds: dict[int, list[Measured]], peers: dict[int, list[rendezvous.Met | None]]) -> list[results.Figure]:
    """What is kept of it for the picture: every size, also one of torch's that did not meet within its limit."""
    series: list[results.Figure] = []
    for size, measured in rounds.items():
        command = f"python -m tests.bench.scale --sizes {size}"
        for what, values in (
            (f"{size} agents meet", [one.meet_s for one in measured]),
            (f"one of {size} lost", [one.lost_s for one in measured]),
            (running_again(size), [one.change_s for one in measured]),
            (f"the leader of {size} lost", [one.leader_lost_s for one in measured]),
        ):
            series.append(results.figure(what, results.OURS, "s", values, command))
    for size, met in peers.items():
        command = f"python -m tests.bench.scale --sizes '' --torch {size}"
        took_s = [one.seconds for one in met if one is not None]
        figure = results.figure(f"{size} agents meet", MEETING, "s", took_s or [rendezvous.JOIN_LIMIT_S], command)
        if unfinished := len(met) - len(took_s):
            limit_s = float(rendezvous.JOIN_LIMIT_S)
            figure = msgspec.structs.replace(figure, value=limit_s, rounds=tuple(took_s), unfinished=unfinished)
        series.append(figure)
    return series


def running_again(size: int) -> str:
    """The name of `change`. All agents share the cores of one machine, which no job does."""
    return f"one of {size} lost: all workers run again, all agents on one machine"


def typical(rounds: Sequence[rendezvous.Met | None]) -> rendezvous.Met | None:
    """The round with the median time; None if the agents of one round did not meet."""
    met = [one for one in rounds if one is not None]
    return sorted(met, key=lambda one: one.seconds)[len(met) // 2] if met and len(met) == len(rounds) else None


def show(found: dict[int, Measured], peers: dict[int, rendezvous.Met | None], console: Console) -> None:
    """Print the tables."""
    table = Table("agents", "connect s", "meet s", "lost s", "change s", "apply ms", "worst ms", "document B",
                  "messages: meet", "each", "change", "each", "MB: meet", "change", title="elastic-launch")  # fmt: skip
    leaders = Table("agents", "lost s", "change s", "try to lead", "messages", "each", "MB", title="the leader lost")
    for size, one in found.items():
        table.add_row(
            str(size), f"{one.connect_s:.2f}", f"{one.meet_s:.3f}", f"{one.lost_s:.3f}", f"{one.change_s:.2f}",
            f"{1e3 * one.apply_s:.2f}", f"{1e3 * one.apply_worst_s:.1f}", f"{one.document_bytes:.0f}",
            f"{one.meet.messages:.0f}", f"{one.meet.messages / size:.1f}",
            f"{one.lost.messages:.0f}", f"{one.lost.messages / size:.1f}",
            f"{one.meet.bytes / 1e6:.2f}", f"{one.lost.bytes / 1e6:.2f}",
        )  # fmt: skip
        leaders.add_row(
            str(size), f"{one.leader_lost_s:.3f}", f"{one.leader_change_s:.2f}", f"{one.leads:g}",
            f"{one.leader_lost.messages:.0f}", f"{one.leader_lost.messages / size:.1f}",
            f"{one.leader_lost.bytes / 1e6:.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(leaders)
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
    """Measure, and print; 0 if every goal is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=numbers, default="10,100,300,1000,3000")
    parser.add_argument("--torch", type=numbers, default="4,8,16,32,64,128")
    parser.add_argument("--torch_rounds", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--idle", type=numbers, default=str(GOAL_SIZE))
    parser.add_argument("--idle_s", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()

    raise_limits()
    console = Console(width=150)
    with Parts(args.processes) as parts:
        rounds = asyncio.run(measure_all(parts, args.sizes, args.slots, args.rounds, console))
    found = {size: median(measured) for size, measured in rounds.items()}
    results.write("scale", figures(rounds, {}), args.results)  # torch's take long, and may be cut off.
    torch_rounds = {size: [rendezvous.meet_alone(size) for _ in range(args.torch_rounds)] for size in args.torch}
    peers = {size: typical(met) for size, met in torch_rounds.items()}
    show(found, peers, console)
    results.write("scale_sizes", sizes(rounds, torch_rounds), args.results)
    kept_figures = figures(rounds, torch_rounds)
    for size in args.idle:
        kept_figures += idle_crowd.measure(size, args.idle_s, args.processes)
    results.write("scale", kept_figures, args.results)
    told = verdicts(found, args.slots)
    for text, kept in told:
        console.print(f"{'kept' if kept else 'BROKEN'}: {text}", highlight=False)
    return 0 if all(kept for _, kept in told) and all(one.kept is not False for one in kept_figures) else 1


if __name__ == "__main__":
    sys.exit(main())
