"""The classes of worker failures, and what each of them costs (pure).

The launcher knows the class of each cause (`launcher.workers.failure_causes`). The rules of
`elastic.core.restart_policy` decide what the failures of a generation cost together.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple


class FailureClass(StrEnum):
    """How a worker's failure counts."""

    SECONDARY = "secondary"
    UNRECOVERABLE = "unrecoverable"
    STARTUP = "startup"
    RESTART_REQUESTED = "restart_requested"
    CANNOT_START = "cannot_start"
    PARTITION = "partition"
    MACHINE = "machine"
    SCRIPT = "script"

    @property
    def of_machine(self) -> bool:
        """Whether the machine and not the script is to blame."""
        return FAILURE_CLASSES[self].of_machine


class Cost(StrEnum):
    """The cost of a job's first failure if all workers fail in this way and nothing else goes wrong."""

    RESTART = "a restart"
    FREE = "nothing"
    JOB = "the job"


class FailureCost(NamedTuple):
    """What a class means, what it costs, the exceptions, and the rules of the policy that decide this."""

    meaning: str
    cost: Cost
    but: str
    rules: tuple[str, ...]
    of_machine: bool = False


FAILURE_CLASSES: Final[Mapping[FailureClass, FailureCost]] = {
    FailureClass.SECONDARY: FailureCost(
        "the worker lost a peer: the cause is elsewhere", Cost.RESTART,
        "nothing while a node was lost, had to stop its workers, or all were being stopped",
        ("node_lost", "forced_stop", "being_stopped"),
    ),
    FailureClass.UNRECOVERABLE: FailureCost(
        "each further start would fail in the same way", Cost.JOB, "", ("unrecoverable",)
    ),
    FailureClass.STARTUP: FailureCost(
        "the script ended with an error of its own before it did anything", Cost.JOB,
        "a restart if another worker failed in another way", ("script_cannot_start",),
    ),
    FailureClass.RESTART_REQUESTED: FailureCost(
        "the script asks for a restart", Cost.RESTART, "nothing after progress", ("restart_requested",)
    ),
    FailureClass.CANNOT_START: FailureCost(
        "the machine cannot start the program", Cost.JOB, "as `machine` if another host started it",
        ("no_host_can_start", "machine_fault"), of_machine=True,
    ),
    FailureClass.PARTITION: FailureCost(
        "the machine cannot reach other nodes of the job", Cost.FREE, "as `machine` if no node is cut off",
        ("network_split", "machine_fault"), of_machine=True,
    ),
    FailureClass.MACHINE: FailureCost(
        "the machine and not the script is to blame", Cost.FREE, "a restart from the fourth in a row without progress",
        ("machine_fault",), of_machine=True,
    ),
    FailureClass.SCRIPT: FailureCost("any other failure", Cost.RESTART, "", ("charged",)),
}  # fmt: skip
"""The meaning and the cost of each class."""
