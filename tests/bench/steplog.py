"""The step log that training scripts write here: one line for each step and rank."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(
    r"(?P<at_s>\d+\.\d+) generation=(?P<generation>\d+) rank=(?P<rank>\d+) world=(?P<world>\d+) step=(?P<step>\d+)"
    r"(?: pid=(?P<pid>\d+))?\n"
)


@dataclass(frozen=True, slots=True)
class Step:
    """One step as one rank finished it. `at_s` is wall clock; `pid` is 0 where the script does not write it."""

    at_s: float
    generation: int
    rank: int
    world: int
    step: int
    pid: int


def read(path: Path) -> list[Step]:
    """Read every whole line; a line that is still being written is left out."""
    if not path.exists():
        return []
    return [
        Step(
            float(found["at_s"]),
            int(found["generation"]),
            int(found["rank"]),
            int(found["world"]),
            int(found["step"]),
            int(found["pid"] or 0),
        )
        for found in _LINE.finditer(path.read_text())
    ]
