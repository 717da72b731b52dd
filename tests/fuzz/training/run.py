"""Fuzz the training library: `python -m tests.fuzz.training.run --seeds 0:100` runs the plans of these seeds.

Each seed is a schedule of worlds with faults (`plan`), run by `elastic.testing` and judged by `check`. A seed
that fails prints its plan, what is not true, and the command that runs it again.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from elastic.testing import End, RunFailed, RunHung, World, run
from tests.fuzz.training import replica
from tests.fuzz.training.check import Judge, Rank, number, read
from tests.fuzz.training.plan import Plan, Training, plan

TIMEOUT_S = 90.0
MARK = "ELASTIC_FUZZ_MARK"
RAN_OUT = re.compile(
    r"returned before the scheduled end of the world|returned, instead of exiting with code 143|"
    r"returned, although the schedule made it fail"
)
"""The training was over before the fault came: the seed says nothing."""
REFUSED = re.compile(r"^elastic: error: step \d+ was committed on .* but no checkpoint can be read ", re.MULTILINE)
"""What a restore says that would have to go back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a seed. `kind` is "ok", "ran out", "refused" (nothing could be read, as it must) or "wrong"."""

    plan: Plan
    kind: str
    found: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What is not true, and how to see it again."""
        again = f"python -m tests.fuzz.training.run --seeds {self.plan.seed}"
        return "\n".join([str(self.plan), *(f"  WRONG: {one}" for one in self.found), f"  again: {again}"])


def outcome(seed: int, *, timeout_s: float = TIMEOUT_S) -> Outcome:
    """Run the plan of a seed and judge it."""
    made = plan(seed)
    reference = _reference(_undisturbed(made.training)) if made.training.total is not None else []
    mark = secrets.token_hex(8)
    before = _left_behind(mark)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        diaries = Path(folder, "diaries")
        diaries.mkdir()
        where = Path(folder, "checkpoints")
        error: RunFailed | None = None
        values = None
        try:
            result = run(
                replica.train, worlds=made.worlds, slots=made.slots, args=(made, str(diaries)),
                env={MARK: mark, "ELASTIC_CHECK_NAN": str(int(made.training.check_nan))}, timeout_s=timeout_s,
                checkpoint_dir=where if made.shared else None, checkpoint_dirs=None if made.shared else where,
            )  # fmt: skip
            values = result.values
        except RunFailed as failed:
            error = failed
        if error is not None and not isinstance(error, RunHung) and RAN_OUT.search(str(error)):
            return Outcome(made, "ran out")
        judge = Judge(made, _ranks(made, diaries))
        found = judge.run(values, reference)
        kind = "ok"
        if error is not None:
            kind = "refused"
            index = len(judge.worlds) - 1
            if isinstance(error, RunHung) or not REFUSED.search(str(error)):
                found.append(f"the run fails: {error}")
            elif made.shared:
                found.append(f"the run fails although the folder is shared: {error}")
            elif (least := judge.readable(index)) >= (known := _known(str(error))):
                found.append(f"step {least} could be read, and the job knew of {known}, yet the run fails: {error}")
        found += [f"left behind: {one}" for one in sorted(_left_behind(mark) - before)]
    return Outcome(made, "wrong" if found else kind, tuple(found))


def _known(text: str) -> int:
    found = re.search(r"step (\d+) was committed on", text)
    return int(found[1]) if found else -1


def _undisturbed(training: Training) -> Training:
    return replace(
        training, mode="none", most=None, every=None, memory_every=None, workers=0, exact=False, check_nan=False,
        beside=0,
    )  # fmt: skip


@lru_cache
def _reference(training: Training) -> list[float]:
    """The parameters at the end of an undisturbed run of one replica."""
    made = Plan(0, training, (World(1, End()),), ((),), 1, True)
    with tempfile.TemporaryDirectory() as folder:
        found = run(replica.train, worlds=[1], args=(made, folder), timeout_s=TIMEOUT_S).values[0]
    assert isinstance(found, list)
    return found


def _ranks(made: Plan, diaries: Path) -> list[list[Rank]]:
    """What the replicas of each world wrote down, as far as the run came."""
    found = {number(path.name): read(path.read_text().splitlines()) for path in diaries.iterdir()}
    last = max((generation for generation, _ in found), default=0)
    return [
        [found.get((index + 1, rank), Rank()) for rank in range(made.worlds[index].nodes * made.slots)]
        for index in range(last)
    ]


def _left_behind(mark: str) -> set[str]:
    """Processes of a run, memory of this process, and what lies in /dev/shm and the temporary folder."""
    found = set()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.add(f"process {process.name}: {(process / 'cmdline').read_bytes()!r}")
        except OSError:
            continue
    memory = []
    for handle in Path("/proc/self/fd").iterdir():
        try:
            memory.append(os.readlink(handle))
        except OSError:
            continue
    found.add(f"{sum('memfd:' in one for one in memory)} pieces of memory")
    for path in Path("/dev/shm").iterdir():
        pid = re.match(r"torch_(\d+)_", path.name)
        if pid and not Path("/proc", pid[1]).exists():
            found.add(str(path))
    return found


def main() -> int:
    """Run seeds; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.training.run", description="Fuzz the training library.")
    parser.add_argument("--seeds", default="0:20", help="seeds: 7, 0:20 (without 20), or 3,5,10:20; default 0:20")
    parser.add_argument("--show", action="store_true", help="print each plan before it runs")
    wish = parser.parse_args()
    seeds: list[int] = []
    for part in wish.seeds.split(","):
        first, _, end = part.partition(":")
        seeds += range(int(first), int(end or int(first) + 1))
    counts: dict[str, int] = {}
    wrong = []
    for seed in seeds:
        if wish.show:
            print(plan(seed), flush=True)
        began = time.monotonic()
        one = outcome(seed)
        counts[one.kind] = counts.get(one.kind, 0) + 1
        print(f"seed {seed}: {one.kind} ({time.monotonic() - began:.1f} s)", flush=True)
        if one.kind == "wrong":
            wrong.append(seed)
            print(one, flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())), f"wrong seeds: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
