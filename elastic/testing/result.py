"""What a run returns: for each world what came of each of its replicas."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from elastic.testing.replica import ReplicaFailed


@dataclass(slots=True)
class Replica:
    """What came of one process.

    Attributes:
        rank: Its rank in its world.
        node: The name of its node.
        code: Its exit code, or minus the signal that ended it. None if it still ran when the run was cut off.
        value: What the function returned, None if it did not return.
        records: What it passed to `record`, in order.
        output: What it wrote to stdout and stderr.
        notes: The lines that the library gave the agent for people.
        raised: The last line of its traceback, "" without one.
        step: The highest step that it reported, None if it reported none.
    """

    rank: int
    node: str
    code: int | None = None
    value: Any = None
    records: list[Any] = field(default_factory=list)
    output: str = ""
    notes: list[str] = field(default_factory=list)
    raised: str = ""
    step: int | None = None


@dataclass(slots=True)
class WorldResult:
    """What came of one world.

    Attributes:
        generation: Its generation, from 1.
        nodes: The names of its nodes in the order of their ranks. A node keeps its name while it lives.
        replicas: Its replicas by rank.
        saved: The newest step whose checkpoint was reported as complete, None if there was none.
    """

    generation: int
    nodes: tuple[str, ...]
    replicas: list[Replica]
    saved: int | None = None

    @property
    def values(self) -> list[Any]:
        """What the function returned, by rank; None where it did not return."""
        return [replica.value for replica in self.replicas]


@dataclass(slots=True)
class Result:
    """What came of a run.

    Attributes:
        worlds: The worlds in order.
    """

    worlds: list[WorldResult]

    @property
    def values(self) -> list[Any]:
        """What the function returned in the last world, by rank."""
        return self.worlds[-1].values

    @property
    def records(self) -> list[Any]:
        """All recorded values, world after world, and within a world rank after rank."""
        return [value for world in self.worlds for replica in world.replicas for value in replica.records]

    @property
    def output(self) -> str:
        """The output of all replicas, each below a line that names its world and rank."""
        return "".join(
            f"--- world {index}, rank {replica.rank}\n{replica.output}"
            for index, world in enumerate(self.worlds)
            for replica in world.replicas
        )


def read(replica: Replica, files: str) -> ReplicaFailed | None:
    """Fill in what a replica has written; how its function failed, None if it did not raise."""
    replica.output = text(f"{files}.output")
    whole, _, _ = text(f"{files}.records").rpartition("\n")  # What follows it was cut off by a kill.
    replica.records = [json.loads(line) for line in whole.splitlines()]
    if Path(f"{files}.value").exists():
        import torch

        replica.value = torch.load(f"{files}.value", weights_only=True, map_location="cpu")
    raised = text(f"{files}.failed")
    if not raised:
        return None
    failed = msgspec.json.decode(raised, type=ReplicaFailed)
    replica.raised = failed.line
    return failed


def text(path: str) -> str:
    """What stands in a file, "" if there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return ""
