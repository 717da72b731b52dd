"""Break each rule of the core once, and look for the seed that finds it: `python -m tests.sim.mutate`.

    python -m tests.sim.mutate                     # replay the noted seeds; look further where one finds nothing
    python -m tests.sim.mutate --only "gate: open" # the mutations whose names contain this
    python -m tests.sim.mutate --write             # note the seeds that were found in tests/sim/mutations.json

It prints a table and exits with 1 if a mutation was not found.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.sim.kinds import PLAYS, ROSTERS_FROM, seeds_of
from tests.sim.mutant import Found, Mutation, find
from tests.sim.mutations import MUTATIONS, OF_ROSTERS

NOTED = Path(__file__).with_suffix(".json").with_name("mutations.json")
PRELOADED = ("tests.sim.mutations",)
"""What a fresh process has: the core as it is."""
OF_EACH_PLAY = 6


def noted() -> dict[str, int]:
    """The seed that found each mutation, by its name."""
    return json.loads(NOTED.read_text()) if NOTED.exists() else {}


def seeds_for(mutation: Mutation, count: int, first: int | None) -> list[int]:
    """The noted seed, then some of each play, then so many others: those of the kind that the mutation is about."""
    cluster_specs = [*range(ROSTERS_FROM, ROSTERS_FROM + (count if mutation in OF_ROSTERS else count // 5))]
    collective = [] if mutation in OF_ROSTERS else [*range(count)]
    plays = [seed for play in PLAYS for seed in seeds_of(play, OF_EACH_PLAY)]
    return [*([first] if first is not None else []), *plays, *collective, *cluster_specs]


def find_named(name: str, seeds: list[int]) -> Found:
    """The same as `find`; a mutation cannot be sent to another process, its name can."""
    return find(next(mutation for mutation in MUTATIONS if mutation.name == name), seeds)


def fresh(processes: int | None = None) -> ProcessPoolExecutor:
    """Processes that do one task each, on a core that nothing has broken yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return ProcessPoolExecutor(processes or os.cpu_count(), mp_context=context, max_tasks_per_child=1)


def look(mutations: list[Mutation], count: int, processes: int | None) -> Iterator[tuple[Mutation, Found]]:
    """Look for each mutation; results as they come."""
    known = noted()
    with fresh(processes) as pool:
        tasks: dict[Future[Found], Mutation] = {
            pool.submit(find_named, one.name, seeds_for(one, count, known.get(one.name))): one for one in mutations
        }
        for task in as_completed(tasks):
            yield tasks[task], task.result()


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds are tried (default: %(default)s)")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("--write", action="store_true", help=f"note the seeds in {NOTED.name}")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    asked = parser.parse_args(arguments)
    chosen = [one for one in MUTATIONS if asked.only in one.name]
    seeds = noted()
    missed = 0
    for mutation, found in look(chosen, asked.seeds, asked.processes):
        said = found.said.partition(": ")[2][:100] if found.seed is not None else "NOT FOUND"
        missed += found.seed is None
        print(f"{mutation.name:32} {found.seed if found.seed is not None else '':>8}  {said}", flush=True)
        if found.seed is not None:
            seeds[mutation.name] = found.seed
        else:
            seeds.pop(mutation.name, None)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations found")
    if asked.write:
        names = {one.name for one in MUTATIONS}
        kept = {name: seeds[name] for name in sorted(seeds) if name in names}
        NOTED.write_text(json.dumps(kept, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
