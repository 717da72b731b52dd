"""A recovery as it was measured, step by step: docs/bench/recorded.json, of which the picture in README.md is drawn.

    python -m tests.bench.recorded [--rounds 7]

Three nodes on this machine, one worker each, train with the library; the node of the last rank is killed (SIGKILL), as
in `tests.bench.recovery --kinds node`. Of some rounds the one with the median is kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from tests.bench import jobs, results, steplog
from tests.bench.jobs import Contender
from tests.bench.losses import Kind, Round, one_round
from tests.support import bytecode

STATE_MB = 1.0
SCRIPT_EVERY = 1_000_000
NODES = 3
BEFORE_MS, AFTER_MS = 300.0, 700.0
"""How much of the run is kept around the kill."""
FILE = "recorded.json"
KIND = Kind("recorded", "SIGKILL of a node", lambda target: target.node.kill(), goes_on_s=AFTER_MS / 1000)


class Lane(msgspec.Struct, frozen=True):
    """One node: when its steps were done, in milliseconds after the kill, before it and after it."""

    before: tuple[float, ...]
    after: tuple[float, ...] = ()


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One recovery. The lane of the node that was killed has nothing after it; it is the last."""

    machine: str
    command: str
    rounds: tuple[float, ...]
    """Seconds of all rounds; `took_ms` is the median of them."""
    took_ms: float
    """From the kill to the first step of the last survivor."""
    steps: tuple[int, int]
    """The newest step before the kill, and the first one after it."""
    lanes: tuple[Lane, ...]
    phases: Mapping[str, float]
    """Milliseconds, as the job's own events have them."""


def lanes(steps: Sequence[steplog.Step], took_ms: float) -> tuple[tuple[Lane, ...], tuple[int, int]]:
    """What each node did, counted from the kill, and the steps around it: the newest before, the first after."""
    old = max(step.generation for step in steps if step.world == NODES)
    new = [step for step in steps if step.world == NODES - 1 and step.generation > old]
    first = {rank: min(one.at_s for one in new if one.rank == rank) for rank in {one.rank for one in new}}
    killed_at_s = max(first.values()) - took_ms / 1000
    names = sorted({one.node for one in steps}, key=lambda name: (name not in {one.node for one in new}, name))

    def of(name: str, of_world: Sequence[steplog.Step]) -> tuple[float, ...]:
        moments = (1000 * (one.at_s - killed_at_s) for one in of_world if one.node == name)
        return tuple(round(at, 1) for at in moments if -BEFORE_MS <= at <= AFTER_MS)

    before = [one for one in steps if one.generation == old]
    around = (max(one.step for one in before), min(one.step for one in new))
    return tuple(Lane(of(name, before), of(name, new)) for name in names), around


def measure(count: int) -> Recorded:
    """Run the rounds, and keep the one in the middle."""
    script = partial(jobs.with_state, size_mb=STATE_MB, every=SCRIPT_EVERY, memory_every=1)
    contender = Contender(results.OURS, jobs.etcd_store, jobs.ours(str(NODES), script=script))
    rounds: list[tuple[Round, list[steplog.Step]]] = []
    with tempfile.TemporaryDirectory(prefix="recorded-") as scratch, contender.store() as store:
        for number in range(count):
            folder = Path(scratch) / f"round{number}"
            took = one_round(KIND, contender, store, f"recorded{number}", folder)
            rounds.append((took, steplog.read(folder / "steps.log")))
            print(f"round {number + 1}: {took.took_s:.3f} s, {took.again} steps again", flush=True)
    took, steps = sorted(rounds, key=lambda one: one[0].took_s)[len(rounds) // 2]
    took_ms = round(1000 * took.took_s, 1)
    of_nodes, around = lanes(steps, took_ms)
    return Recorded(
        machine=results.machine(),
        command=contender.shown(),
        rounds=tuple(round(one.took_s, 4) for one, _ in rounds),
        took_ms=took_ms,
        steps=around,
        lanes=of_nodes,
        phases={name: round(length, 1) for name, length in took.phases.items()},
    )


def read(folder: Path = results.FOLDER) -> Recorded:
    """What was kept."""
    return msgspec.json.decode((folder / FILE).read_bytes(), type=Recorded)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    bytecode.write()
    data = msgspec.json.encode(measure(args.rounds))
    (args.results / FILE).write_bytes(msgspec.json.format(data, indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
