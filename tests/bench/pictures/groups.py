"""The phases of a recovery in a picture: in their order, in six groups with a colour each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from launcher.history.recovery import PhaseEnd
from tests.bench.results import Figure


class PhaseGroup(NamedTuple):
    """Phases with one colour, and what happens in them."""

    phases: tuple[PhaseEnd, ...]
    meaning: str

    @property
    def words(self) -> str:
        """The names of the phases."""
        return ", ".join(self.phases)


GROUPS: Final = (
    PhaseGroup((PhaseEnd.DETECTED,), "the connections of node 3 close"),
    PhaseGroup((PhaseEnd.DECIDED, PhaseEnd.PUBLISHED), "the leader publishes the new members"),
    PhaseGroup((PhaseEnd.STOPPED, PhaseEnd.HEARD_GO), "old workers stop on every node"),
    PhaseGroup(
        (PhaseEnd.SPAWNED, PhaseEnd.ASKED_FOR_GROUP, PhaseEnd.GROUPED),
        "new workers start and connect",
    ),
    PhaseGroup((PhaseEnd.RESTORED,), "workers copy the state from memory"),
    PhaseGroup((PhaseEnd.STEPPED,), "the first training step"),
)


def lengths_ms(figure: Figure) -> list[float]:
    """Milliseconds of each group of a figure.

    The job's own phases of a failure begin when the first agent notices it. Before that the operating system ends the
    killed process and closes its connections: this time, up to the median from the kill to the next step, is part of
    `detect`.
    """
    unknown = set(figure.phases) - {phase for group in GROUPS for phase in group.phases}
    if unknown:
        raise ValueError(f"{figure.what}: no group has the phases {', '.join(sorted(unknown))}")
    lengths = [sum(figure.phases.get(phase, 0.0) for phase in group.phases) for group in GROUPS]
    if PhaseEnd.DETECTED in figure.phases:
        lengths[0] += max(1000 * figure.value - sum(lengths), 0.0)
    return lengths


def whole(values: Sequence[float]) -> list[int]:
    """The values in whole numbers that add up to their sum in whole numbers: those with most behind the point grow.

    The first of equal ones does, also where the last digits of a sum differ: Python 3.12 adds floats otherwise.
    """
    numbers = [int(value) for value in values]
    by_rest = sorted(range(len(values)), key=lambda place: round(numbers[place] - values[place], 9))
    for place in by_rest[: round(sum(values)) - sum(numbers)]:
        numbers[place] += 1
    return numbers
