"""The step log that training scripts write here: one line for each step and rank.

The time in a line is `time.time()` of this machine, the clock by which the benchmarks kill. Lines are written without a
buffer and in one piece, so that a worker that is killed has written every step that it finished.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(
    r"(?P<at_s>\d+\.\d+) generation=(?P<generation>\d+) rank=(?P<rank>\d+) world=(?P<world>\d+) step=(?P<step>\d+)"
    r"(?: pid=(?P<pid>\d+))?(?: node=(?P<node>\S+))?\n"
)
NUMBERS = ("generation", "rank", "world", "step", "pid")


@dataclass(frozen=True, slots=True)
class Step:
    """One step as one rank finished it. `at_s` is wall clock; `pid` is 0 and `node` empty where the script does not
    write it."""

    at_s: float
    generation: int
    rank: int
    world: int
    step: int
    pid: int
    node: str = ""


class Writer:
    """Appends lines for one worker; it opens the file once."""

    def __init__(self, path: str, rank: int, world: int) -> None:
        generation, node = os.environ.get("ELASTIC_GENERATION", "0"), os.environ.get("ELASTIC_NODE_ID", "-")
        self._before = f" generation={generation} rank={rank} world={world} step="
        self._after = f" pid={os.getpid()} node={node}\n"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, step: int) -> None:
        """Say that a step is done now."""
        os.write(self._file, f"{time.time():.4f}{self._before}{step}{self._after}".encode())


class Reader:
    """Reads what is new in the log: a benchmark that looks often costs the machine nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.steps: list[Step] = []

    def read(self) -> list[Step]:
        """All steps so far; a line that is still being written is left out."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            self.steps.extend(map(_step, _LINE.finditer(whole.decode())))
        return self.steps


def read(path: Path) -> list[Step]:
    """Read every whole line; a line that is still being written is left out."""
    return Reader(path).read()


def _step(found: re.Match[str]) -> Step:
    generation, rank, world, step, pid = (int(found[name] or 0) for name in NUMBERS)
    return Step(float(found["at_s"]), generation, rank, world, step, pid, found["node"] or "")
