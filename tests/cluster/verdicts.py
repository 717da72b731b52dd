"""What must be true of a job, whatever struck it: judged by what its workers wrote down."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from elastic.train.checkpoint import manifest
from tests.cluster import engine

APART_MAX = 1e-9
REFERENCE_S = 120.0
CRASH = re.compile(
    r'File "[^"]*/launcher/(?!nursery/spawn|nursery/run_script|worker)|never retrieved|Fatal Python error'
)
"""What an agent or a nursery says that broke. Workers whose peers are gone have tracebacks, too."""


@dataclass(frozen=True, slots=True)
class Diary:
    """What one worker wrote down: its world, its own name and, for each step, the time."""

    world: str
    name: str
    steps: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class World:
    """The first and the last step of one generation, with their times.

    A step is made when the first of its workers has it: all have contributed then. A machine that is frozen at that
    moment notes it down when it wakes, while the next world trains.
    """

    name: str
    first: int
    last: int
    began: float
    ended: float


class Verdicts:
    """Looks at the folder of a job."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, goal: int, lines: list[str]) -> None:
        """All of it, after the job has ended."""
        worlds = worlds_of(self.diaries())
        for found in (second_worlds(worlds), holes(worlds, goal)):
            assert not found, "\n".join(found)
        self._numbers(goal)
        self._checkpoints()
        assert [line for line in lines if CRASH.search(line)] == []

    def diaries(self) -> list[Diary]:
        """Those that have a step."""
        found = []
        for path in sorted((self._folder / "steps").iterdir()):
            steps = tuple(_entries(path.read_text()))
            if steps:
                found.append(Diary(path.name.partition(" ")[0], path.name, steps))
        return found

    def _numbers(self, goal: int) -> None:
        """The same as those of one process that nothing disturbed."""
        alone = self._folder / "undisturbed"
        (alone / "steps").mkdir(parents=True)
        (alone / "goal").write_text(str(goal))
        subprocess.run(
            [sys.executable, "-m", "tests.cluster.training", str(alone), "--fast"],
            check=True, cwd=alone, timeout=REFERENCE_S, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(engine.ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        import torch

        ended, undisturbed = (torch.load(folder / "end.pt") for folder in (self._folder, alone))
        assert ended["step"] == undisturbed["step"] == goal
        pairs = [(ended["network"][name], undisturbed["network"][name]) for name in undisturbed["network"]]
        apart = max(float((one - other).abs().max()) for one, other in pairs)
        assert apart < APART_MAX, f"the numbers are {apart:.1e} from those of an undisturbed run"

    def _checkpoints(self) -> None:
        """Each of them is whole: every file is as long as it was written, and has its checksum."""
        entries = manifest.entries(self._folder / "disk")
        assert entries
        for entry in entries:
            for name, part in manifest.read_meta(entry).files.items():
                content = (entry.folder / name).read_bytes()
                assert (len(content), f"{zlib.crc32(content):08x}") == (part.size, part.crc32), (
                    f"{entry.folder / name} is damaged"
                )


def cost(diaries: list[Diary], since: float) -> tuple[float, int]:
    """From `since` on: the longest time without a new step, in seconds, and how many steps were made again."""
    times = sorted([since, *(at for at in _made(diaries).values() if at >= since)])
    done = again = 0
    for world in worlds_of(diaries):
        if world.began >= since:
            again += max(0, done - world.first + 1)
        done = max(done, world.last)
    return max((end - begin for begin, end in pairwise(times)), default=0.0), again


def caught_up(diaries: list[Diary]) -> bool:
    """Whether the newest world has made a step that no world before had made."""
    worlds = worlds_of(diaries)
    return all(worlds[-1].last > other.last for other in worlds[:-1])


def worlds_of(diaries: list[Diary]) -> list[World]:
    """The worlds that made steps, in the order of their first ones."""
    found = []
    for name in {diary.world for diary in diaries}:
        made = _made(diary for diary in diaries if diary.world == name)
        found.append(World(name, min(made), max(made), min(made.values()), max(made.values())))
    return sorted(found, key=lambda world: world.began)


def _made(diaries: Iterable[Diary]) -> dict[int, float]:
    """When each step was made first."""
    found: dict[int, float] = {}
    for step, at in (entry for diary in diaries for entry in diary.steps):
        found[step] = min(at, found.get(step, at))
    return found


def second_worlds(worlds: list[World]) -> list[str]:
    """Worlds that made a step after the first step of the next one."""
    return [
        f"{one.name} made a step {one.ended - other.began:.3f} s after {other.name} had begun"
        for one, other in pairwise(worlds)
        if one.ended > other.began
    ]


def holes(worlds: list[World], goal: int) -> list[str]:
    """Steps up to the goal that nobody made: worlds that begin beyond what was made before."""
    found, done = [], 0
    for world in worlds:
        if world.first > done + 1:
            found.append(f"{world.name} begins with step {world.first}, and only {done} were made")
        done = max(done, world.last)
    return found if done == goal else [*found, f"the last step is {done}, not {goal}"]


def _entries(text: str) -> list[tuple[int, float]]:
    """The steps of a diary. A last line that was cut off does not count."""
    whole = text[: text.rfind("\n") + 1]
    return [(step, at) for step, at in map(json.loads, whole.splitlines())]
