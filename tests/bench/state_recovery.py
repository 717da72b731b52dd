"""The recovery of a job with state, as its user sees it: a node is killed, and the clock runs until training goes on.

Two nodes on this machine, each with a real agent and one worker (tests/bench/state_training.py), an embedded etcd.
The agent of rank 1's node and all its processes get SIGKILL; the node that is left goes on alone.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench import jobs, steplog
from tests.bench.losses import RECOVERY_LIMIT_S, START_LIMIT_S
from tests.bench.nodes import Node, ended, wait_until

NODES = 2
STEP_S = 0.05
EVERY = 40
"""Steps between two checkpoints on disk, with either tier."""
KILL_AFTER = 70


@dataclass(frozen=True)
class Recovery:
    """What one kill cost: seconds to the first step after it, and to the first that had not been made before; the
    seconds of these that `state.restore()` took; and the steps that were made again."""

    first_s: float
    new_s: float
    restore_s: float
    again: int


def command(store: str, job: str, folder: Path, size_mb: float, memory_every: int) -> list[str]:
    """The command of one node."""
    script = partial(jobs.with_state, size_mb=size_mb, every=EVERY, memory_every=memory_every, step_s=STEP_S)
    return jobs.ours(str(NODES), script=script)(store, job, folder)


def one_round(store: str, job: str, folder: Path, size_mb: float, memory_every: int) -> Recovery:
    """Start the nodes, kill one, and see what it cost."""
    folder.mkdir()
    log = folder / "steps.log"
    nodes = [Node(command(store, job, folder, size_mb, memory_every), folder / f"node{i}.out") for i in range(NODES)]
    with ended(nodes):
        found: list[steplog.Step] = []

        def reached(step: int, world: int) -> bool:
            found[:] = [line for line in steplog.read(log) if line.world == world]
            return max((line.step for line in found), default=0) >= step

        wait_until(lambda: reached(KILL_AFTER, NODES), START_LIMIT_S, "the first world", nodes)
        target = next(line.pid for line in found if line.rank == NODES - 1)
        victim = next(node for node in nodes if node.holds(target))
        killed_at_s = victim.kill()
        survivors = [node for node in nodes if node is not victim]
        wait_until(lambda: reached(1, 1), RECOVERY_LIMIT_S, "the step after the kill", survivors)
        newest = max(line.step for line in steplog.read(log) if line.world == NODES)
        wait_until(lambda: reached(newest + 1, 1), RECOVERY_LIMIT_S, "a new step", survivors)
        restored = [line.split() for line in Path(f"{log}.restored").read_text().splitlines()]
        first = found[0]
        new = next(line for line in found if line.step > newest)
        return Recovery(
            first_s=first.at_s - killed_at_s,
            new_s=new.at_s - killed_at_s,
            restore_s=next(float(took_s) for generation, _, took_s in restored if int(generation) == first.generation),
            again=newest - first.step + 1,
        )


def measure(scratch: Path, size_mb: float, rounds: int) -> dict[str, Recovery]:
    """The median of some rounds of each tier, by its name."""
    medians = {}
    with jobs.etcd_store() as store:
        for name, memory_every in (("memory tier", 1), ("disk tier", 0)):
            found = [
                one_round(store, f"{name[:4]}{number}", scratch / f"{name[:4]}{number}", size_mb, memory_every)
                for number in range(rounds)
            ]
            medians[name] = Recovery(
                first_s=statistics.median(one.first_s for one in found),
                new_s=statistics.median(one.new_s for one in found),
                restore_s=statistics.median(one.restore_s for one in found),
                again=round(statistics.median(one.again for one in found)),
            )
    return medians
