"""Run many seeds of the simulation on every core: `python -m tests.sim.many --seeds 100000`.

Every kind is run: collective jobs, a fifth with parameter servers, and some plays; mostly from seeds that the tests do
not use.
It prints how far it is, and at the end the time, the events and every violation; it exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from tests.sim.kinds import PLAYS, PLAYS_FROM, ROSTERS_FROM, SEEDS_OF_A_PLAY, seeds_of
from tests.sim.life import run_seed
from tests.sim.nodes import Violation
from tests.sim.plays.registry import run_play_seed
from tests.sim.rosters import run_roster_seed
from tests.sim.world import World

ONE_IN = 5
"""One in so many runs is a parameter-server job."""
PLAYS_ONE_IN = 20
"""One in so many is a play."""
FIRST = 10_000
CHUNK = 25
PROGRESS_S = 30.0


class Ran(NamedTuple):
    """One run: what was taken, how many events it had, and which guarantee it broke, if any."""

    seed: int
    counts: Counter[str]
    steps: int
    violation: str


def settle_memory() -> None:
    """For a process that runs seeds: a world is garbage as a whole, so that looking for it often finds nothing."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def run(seed: int) -> World:
    """Run one seed of any kind; raises `Violation`."""
    if seed >= PLAYS_FROM:
        return run_play_seed(seed)
    return run_roster_seed(seed) if seed >= ROSTERS_FROM else run_seed(seed)


def one(seed: int) -> Ran:
    """Run one seed, and say what came of it."""
    try:
        world = run(seed)
    except Violation as violation:
        return Ran(seed, Counter(), 0, str(violation))
    except Exception as error:  # noqa: BLE001  The core raised: a violation of another kind, and its seed must be told.
        return Ran(seed, Counter(), 0, f"seed {seed}: {type(error).__name__}: {error}")
    return Ran(seed, world.counts, world.steps, "")


def seeds_from(first: int, count: int) -> list[int]:
    """So many seeds of every kind."""
    cluster_specs, plays = count // ONE_IN, count // PLAYS_ONE_IN
    played = [seeds_of(play, SEEDS_OF_A_PLAY) for play in PLAYS]
    return [
        *range(first, first + count - cluster_specs - plays),
        *range(ROSTERS_FROM + first, ROSTERS_FROM + first + cluster_specs),
        *(played[n % len(played)][(first + n // len(played)) % SEEDS_OF_A_PLAY] for n in range(plays)),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run them, and say how it goes."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.many", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many runs, of every kind")
    parser.add_argument("--first", type=int, default=FIRST, help="the first seed (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one for each core")
    asked = parser.parse_args(arguments)
    if asked.first + asked.seeds > ROSTERS_FROM:
        parser.error(f"--first {asked.first}: with {asked.seeds} seeds it must stay below {ROSTERS_FROM:,}")
    seeds = seeds_from(asked.first, asked.seeds)
    began = said = time.monotonic()
    done = steps = violations = 0
    with ProcessPoolExecutor(asked.processes, initializer=settle_memory) as pool:
        for ran in pool.map(one, seeds, chunksize=CHUNK):
            done += 1
            steps += ran.steps
            if ran.violation:
                violations += 1
                print(ran.violation, flush=True)
            if time.monotonic() > said + PROGRESS_S:
                said = time.monotonic()
                print(f"{done} of {len(seeds)} seeds, {said - began:.0f} s, {violations} violations", flush=True)
    print(f"{done} seeds in {time.monotonic() - began:.0f} s, {steps} events, {violations} violations", flush=True)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
