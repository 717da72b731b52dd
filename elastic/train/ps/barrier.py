"""Synchronous steps: which gradients are averaged, and when. Pure: values in, values out.

A step is complete when every live worker has given its gradients for it. A worker is *due* at a step: it was asked to
give something to it and has not yet. Workers that come later are due from the step being gathered; one that says it
gives to a later step (because another server is there already) gives nothing to those before it.

Before the first step `trainers` workers must have come, so that nobody trains alone while the others still start.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from elastic.errors import MessageError

HELD_MAX = 2
"""How many steps of one worker are kept: one that it waits for, and one of the process that was there before it."""

G = TypeVar("G")


class GradientBarrier(Generic[G]):
    """The gradients of the step being gathered, and of later ones that came early."""

    def __init__(self, trainers: int, *, step: int = 0, opened: bool = False) -> None:
        """Begin at a step; `opened` if the first step was done before this server was started again."""
        self.trainers = trainers
        """How many workers the first step waits for. It may change until then."""
        self.step = step
        self.opened = opened
        self._due: dict[int, int] = {}
        self._given: dict[int, dict[int, G]] = {}
        self._entered: set[int] = set()

    def add_worker(self, worker: int) -> int:
        """A worker is here: from now on it is waited for. The step that it is due at."""
        self._entered.add(worker)
        due = self.step + 1 if worker in self._given.get(self.step, ()) else self.step
        self._due[worker] = max(due, self._due.get(worker, 0))
        return self._due[worker]

    def remove_worker(self, worker: int) -> None:
        """Wait no longer for a worker. What it gave stays."""
        self._due.pop(worker, None)

    def add_gradients(self, worker: int, step: int, gradients: G) -> None:
        """Take a worker's gradients, unless its gradients for the step are there already or come too late.

        `MessageError` for a worker that runs ahead without waiting for its steps.
        """
        if step < self.step:
            return
        if worker not in self._given.get(step, ()):  # Else its process before it had given to this step, too.
            if sum(worker in given for given in self._given.values()) >= HELD_MAX:
                raise MessageError(f"worker {worker} has given to {HELD_MAX} steps that are not complete")
            self._given.setdefault(step, {})[worker] = gradients
        if worker in self._due:
            self._due[worker] = max(self._due[worker], step + 1)

    def take(self) -> list[G]:
        """The gradients of the step, in the order of the workers, if it is complete; the next step begins.

        Empty if it is not. Call it again until it is empty: gradients that came early may complete the next one.
        """
        if not self._given or self.absent() or self.missing():
            return []
        if self.step not in self._given:
            # This server came back with an older state, and everybody is at a later step.
            self.step = min([*self._due.values(), *self._given])
            if self.missing():
                return []
        given = self._given.pop(self.step)
        self.step += 1
        self.opened = True
        return [given[worker] for worker in sorted(given)]

    def missing(self) -> list[int]:
        """The workers that are due at the step, if anybody waits for it."""
        return sorted(worker for worker, due in self._due.items() if due <= self.step) if self._given else []

    def absent(self) -> int:
        """How many workers have yet to come before the first step."""
        return 0 if self.opened else max(0, self.trainers - len(self._entered))
