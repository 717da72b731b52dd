"""A job on three etcd members and four machines, and faults by a seed.

    python -m tests.cluster.chaos --seed 7 --minutes 30

A round strikes one fault, or two with a moment between, lets them last, heals them, and waits until all machines train
together again. A job has some rounds; then it must end with the numbers of an undisturbed one, and nothing may be left
of it. The seed draws everything that is drawn here; what the hosts make of it is theirs.

Exit codes: 0 all jobs ended well; 1 one did not: the round, the seed of the job and its folder are named.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.cluster import engine, verdicts
from tests.cluster.faults import FAULTS, Fault
from tests.cluster.stage import Stage, stage

ROUNDS = 12
"""Of one job."""
LASTS_S = (0.1, 1.0, 4.0, 8.0, 15.0)
"""How long a fault lasts, about: shorter and longer than a lease."""
APART_S = (0.0, 0.05, 0.3, 1.0, 3.0)
"""Between two faults of one round."""
BETWEEN_S = (0.0, 0.5, 2.0)
"""Between two rounds."""


@dataclass(slots=True)
class Tally:
    """What was tried and survived."""

    jobs: int = 0
    rounds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


def draw(dice: Random, allowed: Sequence[str]) -> list[Fault]:
    """One fault, or two that do not exclude each other."""
    first = FAULTS[dice.choice(allowed)]
    others = [FAULTS[name] for name in allowed if name != first.name or first.takes == "machine"]
    others = [other for other in others if other.takes == "machine" or other.takes != first.takes]
    return [first] if dice.random() < 0.3 or not others else [first, dice.choice(others)]


async def round_of(on: Stage, faults: Sequence[Fault], dice: Random, lasts_s: float | None, say: str) -> None:
    """Strike, let it last, heal, and wait until all train again; say what it cost."""
    heals = []
    lasts_s = dice.choice(LASTS_S) * dice.uniform(0.7, 1.3) if lasts_s is None else lasts_s
    print(f"{say}: {' + '.join(fault.name for fault in faults)} for {lasts_s:.1f} s", flush=True)
    _, before = await on.trains(len(on.machines), steps=0)
    began = time.monotonic()
    for fault in faults:
        heals.append(await fault.strike(on, dice))
        await asyncio.sleep(dice.choice(APART_S))
    await asyncio.sleep(lasts_s)
    dice.shuffle(heals)
    for heal in heals:
        await heal()
    healed = time.monotonic()
    _, after = await on.all_here()
    while not verdicts.caught_up(on.verdicts.diaries()):
        await on.trains(len(on.machines))
    stood_s, again = verdicts.cost(on.verdicts.diaries(), began)
    print(
        f"  training stood still for {stood_s:.1f} s and made {again} steps again; generation {before} -> {after}; "
        f"all were back {time.monotonic() - healed:.1f} s after it was healed",
        flush=True,
    )


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job's rounds are like."""

    allowed: Sequence[str]
    rounds: int
    """0: each fault once, alone."""
    lasts_s: float | None
    """None: drawn."""


async def job(seed: int, folder: Path, wish: Wish, tally: Tally) -> None:
    """One job of this seed from begin to end."""
    dice = Random(seed)
    async with stage(folder, etcd=dice.choice(("3.4", "3.5"))) as on:
        try:
            await on.begin()
            for number in range(wish.rounds or len(wish.allowed)):
                faults = draw(dice, wish.allowed) if wish.rounds else [FAULTS[wish.allowed[number]]]
                on.note(f"round {number}: {[fault.name for fault in faults]}")
                await round_of(on, faults, dice, wish.lasts_s, f"seed {seed} round {number}")
                tally.rounds.update([" + ".join(sorted(fault.name for fault in faults))])
                await asyncio.sleep(dice.choice(BETWEEN_S))
            await on.finish()
        finally:
            (folder / "feed.log").write_text(on.feed.tail(1 << 30))
    tally.jobs += 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run jobs until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.chaos", description="Strike a job on real hosts.")
    parser.add_argument("--seed", type=int, default=1, help="of the first job; the next one has the next")
    parser.add_argument("--minutes", type=float, default=10.0, help="no job begins after this time")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each job; 0: each fault once, alone")
    parser.add_argument("--only", default=",".join(FAULTS), help="these faults, with commas")
    parser.add_argument("--lasts", type=float, help="seconds that each fault lasts; default: drawn, 0.1 to 20")
    said = parser.parse_args(argv)
    wish = Wish(said.only.split(","), said.rounds, said.lasts)
    if reason := engine.missing():
        sys.stderr.write(f"chaos: {reason}\n")
        return 2
    tally, began, seed, code = Tally(), time.monotonic(), said.seed, 0
    while time.monotonic() < began + 60 * said.minutes:
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        try:
            asyncio.run(job(seed, folder, wish, tally))
        except (AssertionError, TimeoutError, RuntimeError, OSError):
            traceback.print_exc()
            print(
                f"BROKEN: again with --seed {seed} --minutes 0.01 --rounds {wish.rounds}; all of it: {folder}",
                flush=True,
            )
            code = 1
        seed += 1
    tally.seconds = time.monotonic() - began
    report(tally)
    return code


def report(tally: Tally) -> None:
    """Say what was tried."""
    print(f"{tally.jobs} jobs, {tally.rounds.total()} rounds in {tally.seconds / 60:.1f} minutes")
    for name, count in sorted(tally.rounds.items()):
        print(f"{count:5d}  {name}")


if __name__ == "__main__":
    sys.exit(main())
