"""Seconds that a save blocks training, and seconds to restore: ours against torch.save and torch's own, in one run.

    python -m tests.bench.checkpoint [--sizes 100MB,1GB] [--rounds 5] [--folder DIR] [--quick]

Each way has workers of its own, with one thread: one saves again and again (the first save is told apart: it takes
memory from the kernel) and is killed; each of the others restores once, into a new model, as after a restart. Every
way keeps the same bytes and syncs them to the same disk (see tests/bench/contenders.py). `copies` is the time that
training was blocked, in plain copies of the same bytes made before and after it in the same worker; the lines below a
table have it in processor time too, which a busy machine changes less. "warm" reads files that are in the page cache,
"cold" files that were dropped from it. Then: what the calls of each step cost when nothing is due, and the recovery of
a job of two nodes after one is killed, memory tier against disk tier. Medians, always.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic.testing import Failure, World, run
from tests.bench import call_costs, state_recovery
from tests.bench.contenders import MEASURED, WAYS, contend

LARGE_MB = 500.0
LARGE_ROUNDS = 3
"""States that are larger get fewer rounds: a disk takes seconds for each."""
RUN_LIMIT_S = 600.0
UNITS_MB = {"MB": 1.0, "GB": 1000.0}
WIDTHS = (20, 9, 11, 8, 10, 14, 14)


@dataclass(frozen=True)
class Measured:
    """What one way took: medians, in seconds. `copies` is the median of the ratios of the same moment; `cpu_copies` is
    that of the processor time of the training thread, which does not depend on what else the machine does."""

    size_bytes: int
    copy_s: float
    blocked_s: float
    first_s: float
    copies: float
    cpu_copies: float
    safe_s: float
    warm_s: float
    cold_s: float | None


def measure(name: str, size_mb: float, rounds: int, colds: int, folder: Path) -> Measured:
    """Run the workers of one way."""
    workers = rounds + colds
    worlds = [*[World(1, Failure(MEASURED, by="kill"))] * workers, World(1)]
    checkpoints = folder / "checkpoints"
    result = run(
        contend, args=(name, size_mb, rounds, colds), worlds=worlds, checkpoint_dir=checkpoints, timeout_s=RUN_LIMIT_S
    )
    shutil.rmtree(checkpoints)
    (first, *saves), place = result.worlds[0].replicas[0].records
    restores = [world.replicas[0].records[0] for world in result.worlds[1:]]
    if any(one["place"] != place for one in restores):
        raise RuntimeError(f"{name}: what was restored is not what was saved")

    def median(key: str) -> float:
        return float(statistics.median(save[key] for save in saves))

    return Measured(
        size_bytes=first["bytes"],
        copy_s=median("copy_s"),
        blocked_s=median("blocked_s"),
        first_s=first["blocked_s"],
        copies=median("copies"),
        cpu_copies=median("cpu_copies"),
        safe_s=median("safe_s"),
        warm_s=statistics.median(one["restore_s"] for one in restores if not one["cold"]),
        cold_s=statistics.median([one["restore_s"] for one in restores if one["cold"]] or [0.0]) if colds else None,
    )


def row(*cells: str) -> str:
    """One line of a table."""
    first, *others = zip(cells, WIDTHS, strict=False)
    return "".join([f"{first[0]:<{first[1]}}", *(f"{cell:>{width}}" for cell, width in others)])


def table(size_mb: float, rounds: int, colds: int, folder: Path) -> dict[str, Measured]:
    """Measure every way for one size, and print each line as it is known."""
    print(f"\nstate of {size_mb:.0f} MB, median of {rounds}", flush=True)
    print(row("", "blocked", "first one", "copies", "safe in", "restore warm", "restore cold"))
    found = {}
    for name in WAYS:
        one = found[name] = measure(name, size_mb, rounds, colds, folder)
        cold = "-" if one.cold_s is None or name == "memory tier" else f"{one.cold_s:.3f} s"
        cells = (f"{one.blocked_s:.3f} s", f"{one.first_s:.3f} s", f"{one.copies:.1f}", f"{one.safe_s:.3f} s")
        print(row(name, *cells, f"{one.warm_s:.3f} s", cold), flush=True)
    copy_s = statistics.median(one.copy_s for one in found.values())
    print(row("one memory copy", f"{copy_s:.3f} s", "", "1.0"), flush=True)
    for name in ("memory tier", "disk tier"):
        one = found[name]
        print(
            f"{name}: blocks for {one.copies:.2f} of a memory copy of the same {one.size_bytes / 1e6:.0f} MB "
            f"({one.cpu_copies:.2f} in processor time)"
        )
    return found


def print_calls(number: int) -> None:
    """What a step pays for calls when nothing is due."""
    print("\nmicroseconds of a call when nothing is due")
    for title, times in call_costs.measure(number).items():
        print(f"  {title}: " + ", ".join(f"{call} {micros:.1f}" for call, micros in times.items()), flush=True)


def print_recovery(size_mb: float, rounds: int, folder: Path) -> None:
    """What a killed node costs a job."""
    every = f"every={state_recovery.EVERY}"
    print(f"\na node of two is killed, state of {size_mb:.0f} MB, {every}, steps of {state_recovery.STEP_S} s")
    for name, one in state_recovery.measure(folder, size_mb, rounds).items():
        print(
            f"  {name}: {one.first_s:.2f} s to the first step ({one.restore_s:.2f} s of it state.restore()), "
            f"{one.again} steps done again, {one.new_s:.2f} s to the first new step",
            flush=True,
        )


def sizes(text: str) -> list[float]:
    """Sizes in MB, as in `100MB,1GB`."""
    found = [re.fullmatch(r"(\d+(?:\.\d+)?)(MB|GB)", one.strip()) for one in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes; write 100MB,1GB")
    return [float(one[1]) * UNITS_MB[one[2]] for one in found if one]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=sizes, default=sizes("100MB,1GB"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recoveries", type=int, default=2, help="rounds of the recovery; 0 leaves it out")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written, on the disk that is of interest")
    parser.add_argument("--quick", action="store_true", help="a few small rounds, only to see that it runs")
    args = parser.parse_args(argv)
    if args.quick:
        args.sizes, args.rounds, args.recoveries = [1.0], 1, min(args.recoveries, 1)
    colds = 0 if args.quick else 1
    with tempfile.TemporaryDirectory(prefix="bench-", dir=args.folder) as scratch:
        folder = Path(scratch)
        for size_mb in args.sizes:
            rounds = min(args.rounds, LARGE_ROUNDS) if size_mb >= LARGE_MB else args.rounds
            table(size_mb, rounds, colds, folder)
        print_calls(100 if args.quick else call_costs.CALLS)
        if args.recoveries:
            print_recovery(args.sizes[0], args.recoveries, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
