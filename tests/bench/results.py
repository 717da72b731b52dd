"""Figures as the benchmarks write them: one JSON file each in docs/bench, of which pictures and tables are made.

A figure that is measured again replaces the one with its name; the others of the file stay. So one kind of recovery can
be measured alone. `--results DIR` of each benchmark writes elsewhere.
"""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tests.bench.nodes import ROOT

FOLDER = ROOT / "docs" / "bench"
OURS = "elastic-launch"
NO_LEARN = f"{OURS}, --no-learn"
INTEGRATION = "elastic-launch, elastic.integrations"
ENVIRONMENT = ".venv/bin/"
"""Where `make setup` puts the Python that has what the benchmarks need; readers type their commands with it."""
SCRIPTS_ENVIRONMENT = ".venv-scripts/bin/"
"""The same with the packages of `make scripts`."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured number. `what` and `who` name it; `rounds` are what it is the median of."""

    what: str
    who: str
    unit: str
    value: float
    rounds: tuple[float, ...]
    command: str
    """How to measure it again, with the Python of `environment`."""
    environment: str = ENVIRONMENT
    started: str = ""
    """The command that was measured."""
    goal: float | None = None
    """At most this much; None: there is no goal, for example for a peer."""
    phases: Mapping[str, float] = {}
    """Milliseconds of each phase (medians), where the job's events have them."""
    unfinished: int = 0
    """Rounds that did not end within their limit: `value` is the limit then, and `rounds` are the others."""

    @property
    def kept(self) -> bool | None:
        """Whether the goal is kept; None without one."""
        return None if self.goal is None else self.value <= self.goal

    def verdict(self) -> str:
        """One line for people."""
        text = f"{self.what}, {self.who}: {self.value:.3g} {self.unit}"
        if self.goal is None:
            return text
        return f"{text} (goal: at most {self.goal:.3g}): {'kept' if self.kept else 'BROKEN'}"


class Results(msgspec.Struct, kw_only=True):
    """A file of them."""

    machine: str
    figures: list[Figure]


def figure(
    what: str,
    who: str,
    unit: str,
    rounds: Sequence[float],
    command: str,
    *,
    environment: str = ENVIRONMENT,
    started: str = "",
    goal: float | None = None,
    phases: Mapping[str, float] | None = None,
) -> Figure:
    """The median of some rounds."""
    return Figure(
        what=what,
        who=who,
        unit=unit,
        value=round(statistics.median(rounds), 4),
        rounds=tuple(round(one, 4) for one in rounds),
        command=command,
        environment=environment,
        started=started,
        goal=goal,
        phases=phases or {},
    )


def read(name: str, folder: Path = FOLDER) -> list[Figure]:
    """The figures of a benchmark; none if it was not run."""
    path = folder / f"{name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Results).figures if path.exists() else []


def write(name: str, figures: Sequence[Figure], folder: Path = FOLDER) -> None:
    """Put figures into a benchmark's file, and print how they stand."""
    for one in figures:
        print(one.verdict(), flush=True)
    new = {(one.what, one.who): one for one in figures}
    kept = [new.pop((one.what, one.who), one) for one in read(name, folder)]
    folder.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.encode(Results(machine=machine(), figures=[*kept, *new.values()]))
    (folder / f"{name}.json").write_bytes(msgspec.json.format(data, indent=1) + b"\n")


def machine() -> str:
    """What it was measured on, as far as it matters to a reader."""
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores, Python {'.'.join(map(str, sys.version_info[:3]))}, torch {_version('torch')}, CPU, gloo"


def ratio(what: str, mine: Figure, other: Figure, goal: float, command: str) -> Figure:
    """How many times the other takes as much, as a part: 1/50 is 0.02."""
    part = mine.value / other.value
    return figure(what, f"{mine.who} / {other.who}", "", [part], command, goal=goal)


def _version(package: str) -> str:
    return importlib.metadata.version(package)
