"""What it costs that a node learns what its script imports: with default flags against `--no-learn`, in turns.

    python -m tests.bench.learning [--scripts digits,hf,lightning] [--parts windows,start,kill] [--nodes 3]
                                   [--workers 1] [--windows 5] [--window_s 60] [--starts 7] [--kills 5]

    windows  steps per second of running workers, which compute without a pause, and the CPU time of all processes of
             the nodes that are not workers. The first window begins with the last rank's first step and contains the
             preparation, the second follows it. Each of the `--windows` pairs is two new jobs, one with each setting.
             `--nodes 1 --workers 2` is a node that has two cores for itself
    start    from the command to the last rank's first step
    kill     SIGKILL of a node as soon as every node has begun to prepare and before one is done: until the survivors'
             next step

Each job has an empty cache of its own. The figures go to docs/bench/learning.json. A round in which the preparation did
not happen where it should be (outside its window, or done before the kill) is printed and not kept; then the exit code
is 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.bench import jobs, losses, preparation, results, start, steplog
from tests.bench.jobs import Contender
from tests.bench.losses import START_LIMIT_S, Kind
from tests.bench.nodes import Node, end_in_order, ended, wait_until
from tests.bench.recovery import KINDS, NODES
from tests.support import bytecode

SCRIPTS: dict[str, tuple[Kind, Callable[[Path, float], list[str]]]] = {
    "digits": (KINDS["script_digits"], jobs.digits),
    "hf": (KINDS["script_hf"], jobs.hf_trainer),
    "lightning": (KINDS["script_lightning"], jobs.lightning),
}
"""What is killed, and the words of the script for a pause between steps."""
LOST_GOAL = 3.0
"""Percent of the steps that may be lost in a window. Two equal jobs differ by as much: CPU time says it better."""
TAKEN_GOALS = 3.0, 0.1
"""Percent of the machine that the launcher may take more than with --no-learn, while it prepares and after that."""
CORES = len(os.sched_getaffinity(0))
NOISE = 1.1
"""Two medians of the same thing differ by as much here: ours may take this many times what --no-learn takes."""


def contenders(nodes: int, script: jobs.Script, workers: int = 1) -> tuple[Contender, Contender]:
    """With default flags, and without learning."""
    command = jobs.ours(str(nodes), script=script, workers=workers)
    ours = Contender(results.OURS, jobs.etcd_store, command, learns=True)
    command = jobs.ours(str(nodes), "--no-learn", script=script, workers=workers)
    return ours, Contender(results.NO_LEARN, jobs.etcd_store, command)


def windows_of(steps: Sequence[steplog.Step], began_s: float, window_s: float) -> tuple[float, float]:
    """Steps per second of rank 0 in the two windows that follow this moment."""
    made = [(step.at_s - began_s) / window_s for step in steps if step.rank == 0]
    return sum(0 < at <= 1 for at in made) / window_s, sum(1 < at <= 2 for at in made) / window_s


class Window(NamedTuple):
    """What one job did in one window: steps per second, and percent of the machine that its launcher took."""

    rate: float
    taken: float


class Bench:
    """The parts that were asked for, of one script after the other."""

    def __init__(self, args: argparse.Namespace, scratch: Path) -> None:
        self.args = args
        self._scratch = scratch
        self._folders = 0
        self.complete = True
        self.figures: list[results.Figure] = []

    def windows(self, name: str) -> None:
        """Steps per second while the imports are prepared, and after that."""
        pair = contenders(self.args.nodes, lambda logs: SCRIPTS[name][1](logs, 0.0), self.args.workers)
        measured: dict[str, list[tuple[Window, Window]]] = {one.name: [] for one in pair}
        for number in range(self.args.windows):
            found = {one.name: self._job(one) for one in self._turns(pair, number)}
            for place, when in enumerate(("while the imports are prepared", "after that")):
                words = (
                    f"{who} {job[place].rate:.2f} steps/s, {job[place].taken:.2f} %"
                    for who, job in found.items()
                    if job
                )
                print(f"  {name}, pair {number + 1}, {when}: {'; '.join(words)}", flush=True)
            kept = {who: job for who, job in found.items() if job is not None}
            if len(kept) < len(pair):
                self._not_kept(name, f"pair {number + 1}: not prepared within the first window")
                continue
            for who, job in kept.items():
                measured[who].append(job)
        ours, other = (measured[one.name] for one in pair)
        nodes, workers = self.args.nodes, self.args.workers
        where = "" if (nodes, workers) == (NODES, 1) else f", nodes: {nodes}, workers of each: {workers}"
        for place, when in enumerate(("while the imports are prepared", "after that")):
            lost = [100 * (1 - mine[place].rate / its[place].rate) for mine, its in zip(ours, other, strict=True)]
            self._keep(name, f"steps lost {when}{where}", results.OURS, "%", lost, pair[0], LOST_GOAL)
            more = [mine[place].taken - its[place].taken for mine, its in zip(ours, other, strict=True)]
            what = f"additional CPU time of the launcher, as a share of the machine, {when}{where}"
            self._keep(name, what, results.OURS, "%", more, pair[0], TAKEN_GOALS[place])

    def start(self, name: str) -> None:
        """From the command to the first step, when nothing is known of the script."""
        pair = contenders(self.args.nodes, SCRIPTS[name][0].script)

        def one(contender: Contender) -> float:
            with contender.store() as store:
                return start.one_start(contender, self.args.nodes, store, "start", self._folder())

        self._against(name, "command to first step, empty cache", pair, self.args.starts, one)

    def kill(self, name: str) -> None:
        """A node is killed while the imports are prepared."""
        fewer = NODES - self.args.nodes
        kind = SCRIPTS[name][0]
        kind = replace(
            kind, after=(preparation.BEGUN,), world=kind.world - fewer, nodes=kind.nodes - fewer, happen=self._killed
        )
        pair = contenders(self.args.nodes, kind.script)

        def one(contender: Contender) -> float | None:
            folder = self._folder()
            with contender.store() as store:
                took = losses.one_round(kind, contender, store, "kill", folder)
            done = preparation.first_logged(folder / "log", *preparation.DONE).values()
            return None if min(done, default=self._killed_s) < self._killed_s else took.took_s

        self._against(name, "SIGKILL of a node while its imports are prepared", pair, self.args.kills, one)

    def _killed(self, target: losses.Target) -> float:
        self._killed_s = target.node.kill()
        return self._killed_s

    def _against(
        self,
        name: str,
        what: str,
        pair: Sequence[Contender],
        count: int,
        measure: Callable[[Contender], float | None],
    ) -> None:
        """Rounds of both, in turns; the goal of ours is what the other takes."""
        took_s: dict[str, list[float]] = {one.name: [] for one in pair}
        for number in range(count):
            for contender in self._turns(pair, number):
                seconds = measure(contender)
                if seconds is None:
                    self._not_kept(name, f"round {number + 1}: a node was done before the kill")
                    continue
                print(f"  {name}, {what}, round {number + 1}: {contender.name} {seconds:.3f} s", flush=True)
                took_s[contender.name].append(seconds)
        goal = NOISE * statistics.median(took_s[results.NO_LEARN]) if took_s[results.NO_LEARN] else None
        for contender in pair:
            goal_of_it = goal if contender.learns else None
            self._keep(name, what, contender.name, "s", took_s[contender.name], contender, goal_of_it)

    def _job(self, contender: Contender) -> tuple[Window, Window] | None:
        """The two windows of a new job; None if it prepared outside the first."""
        folder, count, window_s = self._folder(), self.args.nodes, self.args.window_s
        world = count * self.args.workers
        folder.mkdir()
        log = steplog.Reader(folder / "steps.log")
        with contender.store() as store:
            command = contender.command(store, "windows", folder)
            environ = contender.environment(folder)
            nodes = [Node(command, folder / f"node{number}.out", environ) for number in range(count)]
            with ended(nodes):
                wait_until(
                    lambda: len({one.rank for one in log.read() if one.world == world}) == world,
                    START_LIMIT_S,
                    "the first step",
                    nodes,
                )
                began_s = max(min(one.at_s for one in log.steps if one.rank == rank) for rank in range(world))
                workers, cpu_s = {one.pid for one in log.steps}, list[float]()
                for number in range(3):
                    time.sleep(max(0.0, began_s + number * window_s - time.time()))
                    cpu_s.append(sum(node.cpu_s(workers) for node in nodes))
        if contender.learns:
            done = preparation.first_logged(folder / "log", preparation.READY)
            if len(done) < count or max(done.values()) > began_s + window_s:
                return None
        rates = windows_of(log.read(), began_s, window_s)
        taken = [100 * (after - before) / window_s / CORES for before, after in itertools.pairwise(cpu_s)]
        return Window(rates[0], taken[0]), Window(rates[1], taken[1])

    def _turns(self, pair: Sequence[Contender], number: int) -> Sequence[Contender]:
        """The other one is first in every second round: a machine that slows down slows both."""
        return pair if number % 2 == 0 else pair[::-1]

    def _folder(self) -> Path:
        """The path of a folder for the next job, which makes it."""
        self._folders += 1
        return self._scratch / f"job{self._folders}"

    def _not_kept(self, name: str, why: str) -> None:
        print(f"  {name}, {why}: NOT KEPT", flush=True)
        self.complete = False

    def _keep(
        self,
        name: str,
        what: str,
        who: str,
        unit: str,
        rounds: Sequence[float],
        contender: Contender,
        goal: float | None,
    ) -> None:
        if not rounds:
            return
        kind = SCRIPTS[name][0]
        size = "".join(
            f" --{flag} {count}"
            for flag, count, usual in (("nodes", self.args.nodes, NODES), ("workers", self.args.workers, 1))
            if count != usual
        )
        figure = results.figure(
            f"{name}: {what}",
            who,
            unit,
            rounds,
            f"python -m tests.bench.learning --scripts {name}{size}",
            environment=results.SCRIPTS_ENVIRONMENT if kind.needs else results.ENVIRONMENT,
            started=contender.shown(),
            goal=goal,
        )
        self.figures.append(figure)
        results.write("learning", [figure], self.args.results)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scripts", default="digits,hf,lightning")
    parser.add_argument("--parts", default="windows,start,kill")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--workers", type=int, default=1, help="of each node, in the windows")
    parser.add_argument("--windows", type=int, default=5, help="pairs of jobs")
    parser.add_argument("--window_s", type=float, default=60.0)
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    end_in_order()
    bytecode.write()
    with tempfile.TemporaryDirectory(prefix="learning-") as scratch:
        bench = Bench(args, Path(scratch))
        parts = {"windows": bench.windows, "start": bench.start, "kill": bench.kill}
        for name in args.scripts.split(","):
            needs = SCRIPTS[name][0].needs
            if needs and importlib.util.find_spec(needs) is None:
                print(f"{name}: skipped, {needs} is not installed (make scripts)", flush=True)
                continue
            for part in args.parts.split(","):
                parts[part](name)
    return 0 if bench.complete and all(one.kept is not False for one in bench.figures) else 1


if __name__ == "__main__":
    sys.exit(main())
