"""One round of the recovery benchmark: start the nodes, let something happen to one, and see what it cost.

The clock of a loss starts at the kill and stops when every survivor has made its first step in the next world. The
clock of a planned change (drain, newcomer) starts, for each survivor, at its last step in the old world; the start of
the newcomer and its settling window are not in it, because training goes on meanwhile. What one survivor takes longest
counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import phases, preparation, steplog
from tests.bench.jobs import Contender, Script, plain
from tests.bench.nodes import Node, ended, wait_until

if TYPE_CHECKING:
    from tests.cluster.hosts import Host

STEPS_BEFORE = 50
"""Steps of every rank before anything happens."""
START_LIMIT_S = 90.0
RECOVERY_LIMIT_S = 180.0


@dataclass(frozen=True)
class Target:
    """What something happens to: a node and its worker, in their job."""

    node: Node
    pid: int
    store: str
    job: str
    world: int
    """Workers of the world that follows, one on each node."""


@dataclass(frozen=True)
class Kind:
    """Something that happens: `survivors` are the nodes of which a next step is due, of the world that follows."""

    name: str
    what: str
    happen: Callable[[Target], float]
    """Gives the wall clock just before."""
    world: int = 2
    nodes: int = 3
    proposer: bool = False
    planned: bool = False
    newcomer: bool = False
    trains_s: float = 0.0
    """Seconds for which the first world trains on after its first steps."""
    goes_on_s: float = 0.0
    """Seconds for which the next world trains on."""
    apart: bool = False
    """Each node runs on a host of its own."""
    after: tuple[str, ...] = ()
    """It happens once every node of a contender that learns has logged one of these texts of `preparation`."""
    script: Script = plain
    """What is trained: the arguments, for a folder for logs."""
    needs: str = ""
    """The package that the script imports, which this environment may not have."""
    goal_s: float | None = None
    """The most that it may cost, where that is not the goal of all kinds."""


@dataclass(frozen=True)
class Round:
    """What it cost: seconds; the steps that were lost or made again; restoring, where the script says it."""

    took_s: float
    again: int
    world: int
    generation: int
    restore_s: float | None
    phases: Mapping[str, float]
    logged_s: float | None = None
    """From the last rank's first step until the last node logged what the kind waits for; 0 if that was before."""


class Watched:
    """A job's step log, and which worker is on which node."""

    def __init__(self, log: Path, nodes: list[Node]) -> None:
        self._reader = steplog.Reader(log)
        self._nodes = nodes
        self.old: dict[int, Node] = {}
        """The workers of the first world, by pid."""
        self.happened_s = 0.0
        """Wall clock."""

    def first_world(self, count: int) -> bool:
        """Tell whether every rank of the first world has stepped enough."""
        steps = [step for step in self._reader.read() if step.world == count]
        if len({step.rank for step in steps if step.step >= STEPS_BEFORE}) < count:
            return False
        newest = {step.rank: step.pid for step in steps}
        self.old = {pid: node for pid in newest.values() for node in self._nodes if node.holds(pid)}
        return len(self.old) == count

    def first_s(self) -> float:
        """The wall clock when every rank of the first world had made a step."""
        first: dict[int, float] = {}
        for step in self._reader.steps:
            if step.world == len(self.old):
                first.setdefault(step.rank, step.at_s)
        return max(first.values())

    def pid_of(self, rank: int) -> int:
        """The worker that had this rank last."""
        return next(step.pid for step in reversed(self._reader.steps) if step.rank == rank)

    def after(self, world: int) -> dict[int, steplog.Step]:
        """The first step of each rank of the world that follows, by rank, as far as they are made."""
        first: dict[int, steplog.Step] = {}
        changed = world != len(self.old)  # torchft keeps the workers; its world grows one by one when it starts.
        for step in self._reader.read():
            if step.world == world and step.at_s > self.happened_s and (changed or step.pid not in self.old):
                first.setdefault(step.rank, step)
        return first

    def last(self) -> dict[int, steplog.Step]:
        """The last step of each worker of the first world, by pid."""
        return {step.pid: step for step in self._reader.steps if step.pid in self.old}


def one_round(
    kind: Kind,
    contender: Contender,
    store: str,
    job: str,
    folder: Path,
    new_host: Callable[[], Host | None] = lambda: None,
) -> Round:
    """Start the nodes, let it happen, and wait for the next world. `new_host` gives the host of each node."""
    folder.mkdir()

    def start(number: int) -> Node:
        command, output = contender.command(store, job, folder), folder / f"node{number}.out"
        return Node(command, output, contender.environment(folder), new_host())

    nodes = [start(number) for number in range(kind.nodes)]
    watched = Watched(folder / "steps.log", nodes)
    with ended(nodes):
        wait_until(lambda: watched.first_world(kind.nodes), START_LIMIT_S, "the first world", nodes)
        time.sleep(kind.trains_s)
        logged_s = _logged_s(kind, watched, nodes, folder / "log") if kind.after and contender.learns else None
        pid = watched.pid_of(0 if kind.proposer else kind.nodes - 1)
        watched.happened_s = kind.happen(Target(watched.old[pid], pid, store, job, kind.world))
        if kind.newcomer:
            nodes.append(start(kind.nodes))
        alive = [node for node in nodes if node is not watched.old[pid] or kind.world >= kind.nodes]
        wait_until(lambda: len(watched.after(kind.world)) == kind.world, RECOVERY_LIMIT_S, "the next world", alive)
        time.sleep(kind.goes_on_s)
        return replace(_cost(kind, watched, folder), logged_s=logged_s)


def _logged_s(kind: Kind, watched: Watched, nodes: list[Node], log_dir: Path) -> float:
    """Wait until every node has logged what the kind waits for."""
    found: dict[str, float] = {}

    def all_nodes() -> bool:
        found.update(preparation.first_logged(log_dir, *kind.after))
        return len(found) == len(nodes)

    wait_until(all_nodes, preparation.LIMIT_S, f"{' or '.join(kind.after)}, of every node", nodes)
    return max(0.0, max(found.values()) - watched.first_s())


def _cost(kind: Kind, watched: Watched, folder: Path) -> Round:
    after, last = watched.after(kind.world), watched.last()
    took_s = max(step.at_s for step in after.values()) - watched.happened_s
    if kind.planned:
        took_s = _longest_gap(after, last)
    generation = max(step.generation for step in after.values())
    return Round(
        took_s=took_s,
        again=max(step.step for step in last.values()) + 1 - min(step.step for step in after.values()),
        world=kind.world,
        generation=generation,
        restore_s=_restored(folder / "steps.log.restored", generation),
        phases=phases.of(folder / "log", generation),
    )


def _longest_gap(after: Mapping[int, steplog.Step], last: Mapping[int, steplog.Step]) -> float:
    """The longest time that the worker of a surviving node did not step."""
    first = {step.node: step.at_s for step in after.values()}
    return max(first[step.node] - step.at_s for step in last.values() if step.node in first)


def _restored(path: Path, generation: int) -> float | None:
    """The slowest restore of a generation."""
    if not path.exists():
        return None
    lines = [line.split() for line in path.read_text().splitlines()]
    return max((float(took_s) for g, _, took_s in lines if int(g) == generation), default=None)
