"""Seconds from the command to every rank's first step: ours against torchrun's, turn by turn in one run.

    python -m tests.bench.start [--rounds 7] [--uncounted 1] [--nodes 1,3] [--only ours|peer]

All commands of a job start in the same moment on this machine, one worker each. The stores are up already: etcd for
ours; for torchrun's three nodes c10d's store, in a process of its own (its one node has `--standalone`). One start of
each that is not counted comes first, so that all read from a warm disk cache. The figures go to docs/bench/start.json.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import jobs, results, steplog
from tests.bench.jobs import Contender
from tests.bench.losses import START_LIMIT_S
from tests.bench.nodes import Node, ended, wait_until
from tests.support import bytecode


def contenders(count: int, only: str | None) -> list[Contender]:
    """Ours and torchrun, for a job of so many nodes."""
    found = []
    if only != "peer":
        found.append(Contender(results.OURS, jobs.etcd_store, jobs.ours(str(count))))
    if only != "ours" and count == 1:
        found.append(Contender("torchrun", jobs.no_store, jobs.torchrun_standalone))
    if only != "ours" and count > 1:
        found.append(Contender("torchrun", jobs.c10d_store, jobs.torchrun(str(count))))
    return found


def one_start(contender: Contender, count: int, store: str, job: str, folder: Path) -> float:
    """Start a job, wait for the first step of the slowest rank, and end it."""
    folder.mkdir()
    log = steplog.Reader(folder / "steps.log")
    began_s = time.time()
    nodes = [
        Node(contender.command(store, job, folder), folder / f"node{number}.out", contender.environment(folder))
        for number in range(count)
    ]
    with ended(nodes):

        def first() -> dict[int, float]:
            found: dict[int, float] = {}
            for step in log.read():
                if step.world == count:
                    found.setdefault(step.rank, step.at_s)
            return found

        wait_until(lambda: len(first()) == count, START_LIMIT_S, "the first step", nodes)
        return max(first().values()) - began_s


def measure(count: int, args: argparse.Namespace) -> list[results.Figure]:
    """The rounds of one size; ours is measured against the median of torchrun in this run."""
    found = contenders(count, args.only)
    took_s: dict[str, list[float]] = {one.name: [] for one in found}
    with tempfile.TemporaryDirectory(prefix="start-") as scratch, contextlib.ExitStack() as stack:
        stores = {one.name: stack.enter_context(one.store()) for one in found}
        for one in found:
            print(f"\n{one.name}, {count} nodes\n  {one.shown()}", flush=True)
        for number in range(1 - args.uncounted, args.rounds + 1):
            for one in found:
                folder = Path(scratch) / f"{one.name}{number}"
                seconds = one_start(one, count, stores[one.name], f"start{number}", folder)
                counted = number > 0
                print(f"  round {number}: {one.name} {seconds:.3f} s{'' if counted else ' (not counted)'}", flush=True)
                if counted:
                    took_s[one.name].append(seconds)
    figures: dict[str, results.Figure] = {}
    for one in reversed(found):
        peer = figures.get("torchrun")
        figures[one.name] = results.figure(
            f"command to first step, {'one node' if count == 1 else f'{count} nodes'}",
            one.name,
            "s",
            took_s[one.name],
            f"python -m tests.bench.start --nodes {count}",
            started=one.shown(),
            goal=peer.value if peer else None,
        )
    return list(reversed(figures.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--uncounted", type=int, default=1, help="starts of each before the rounds")
    parser.add_argument("--nodes", default="1,3")
    parser.add_argument("--only", choices=("ours", "peer"))
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    bytecode.write()
    within = True
    for count in map(int, args.nodes.split(",")):
        figures = measure(count, args)
        results.write("start", figures, args.results)
        within &= all(one.kept is not False for one in figures)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
