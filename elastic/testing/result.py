"""The result of a run: for each world the results of its replicas."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from elastic.testing.replica import ReplicaFailed


@dataclass(slots=True)
class Replica:
    """The result of one replica.

    Attributes:
        rank: Its rank in its world.
        node: The name of its node.
        code: Its exit code, or minus the number of the signal that ended it. None if it still ran at the timeout.
        value: The return value of the function; None if it did not return.
        records: The values passed to `record`, in order.
        output: Its stdout and stderr.
        notes: The messages that the library sent to the agent's log.
        raised: The last line of its traceback, "" if it did not raise.
        step: The highest step that it reported; None if it reported none.
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
    """The result of one world.

    Attributes:
        generation: Its generation, from 1.
        nodes: The names of its nodes, in the order of their ranks. A node keeps its name from world to world.
        replicas: Its replicas, by rank.
        saved: The newest step whose checkpoint was reported as complete; None if there is none.
    """

    generation: int
    nodes: tuple[str, ...]
    replicas: list[Replica]
    saved: int | None = None

    @property
    def values(self) -> list[Any]:
        """The return values of the function, by rank; None where it did not return."""
        return [replica.value for replica in self.replicas]


@dataclass(slots=True)
class Result:
    """The result of a run.

    Attributes:
        worlds: The worlds, in order.
    """

    worlds: list[WorldResult]

    @property
    def values(self) -> list[Any]:
        """The return values of the function in the last world, by rank."""
        return self.worlds[-1].values

    @property
    def records(self) -> list[Any]:
        """All recorded values, ordered by world and then by rank."""
        return [value for world in self.worlds for replica in world.replicas for value in replica.records]

    @property
    def output(self) -> str:
        """The output of all replicas, each after a line with its world and rank."""
        return "".join(
            f"--- world {index}, rank {replica.rank}\n{replica.output}"
            for index, world in enumerate(self.worlds)
            for replica in world.replicas
        )


def read(replica: Replica, files: str) -> ReplicaFailed | None:
    """Read the files of a replica into `replica`; return its error, None if its function did not raise."""
    replica.output = text(f"{files}.output")
    whole, _, _ = text(f"{files}.records").rpartition("\n")  # A kill may have truncated the last line.
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
    """Return the contents of a file, "" if it does not exist."""
    try:
        return Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return ""
