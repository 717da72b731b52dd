"""Synchronous steps: which gradients are averaged, and when (pure).

A step is complete when every live worker has pushed its gradients for it. Each worker has a *next step*: the first step
whose gradients it has not pushed. A worker that joins later starts with the current step; a worker that pushes for a
later step (because another server is already there) pushes nothing for those before it.

The first step waits until `trainers` workers have joined, so that no worker trains alone while the others start.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from elastic.errors import MessageError

HELD_MAX = 2
"""The largest number of pending steps of a worker: one of its own, and one of the process that it replaced."""

G = TypeVar("G")


class GradientBarrier(Generic[G]):
    """The gradients of the current step, and of later steps that arrived early."""

    def __init__(self, trainers: int, *, step: int = 0, opened: bool = False) -> None:
        """Start at a step; `opened`: the first step was complete before this server restarted."""
        self.trainers = trainers
        """The number of workers that the first step waits for. It may change until then."""
        self.step = step
        self.opened = opened
        self._due: dict[int, int] = {}
        self._given: dict[int, dict[int, G]] = {}
        self._entered: set[int] = set()

    def add_worker(self, worker: int) -> int:
        """Add a worker: from now on steps wait for it. Returns its next step."""
        self._entered.add(worker)
        next_step = self.step + 1 if worker in self._given.get(self.step, ()) else self.step
        self._due[worker] = max(next_step, self._due.get(worker, 0))
        return self._due[worker]

    def remove_worker(self, worker: int) -> None:
        """Stop waiting for a worker. Its gradients remain."""
        self._due.pop(worker, None)

    def add_gradients(self, worker: int, step: int, gradients: G) -> None:
        """Add the gradients of a worker, unless it has pushed for the step before, or the step is complete.

        Raises `MessageError` for a worker that does not wait for its steps.
        """
        if step < self.step:
            return
        if worker not in self._given.get(step, ()):  # Otherwise its previous process has pushed for this step.
            if sum(worker in given for given in self._given.values()) >= HELD_MAX:
                raise MessageError(f"worker {worker} has pushed gradients for {HELD_MAX} incomplete steps")
            self._given.setdefault(step, {})[worker] = gradients
        if worker in self._due:
            self._due[worker] = max(self._due[worker], step + 1)

    def take(self) -> list[G]:
        """Return the gradients of a complete step, in the order of the workers, and start the next step.

        Empty if the step is not complete. Call it until it is empty: early gradients may complete the next step.
        """
        if not self._given or self.absent() or self.missing():
            return []
        if self.step not in self._given:
            # This server has restarted with an older state, and all workers are at a later step.
            self.step = min([*self._due.values(), *self._given])
            if self.missing():
                return []
        given = self._given.pop(self.step)
        self.step += 1
        self.opened = True
        return [given[worker] for worker in sorted(given)]

    def missing(self) -> list[int]:
        """Return the workers whose gradients the step lacks, if any worker waits for it."""
        return sorted(worker for worker, step in self._due.items() if step <= self.step) if self._given else []

    def absent(self) -> int:
        """Return how many workers must still join before the first step."""
        return 0 if self.opened else max(0, self.trainers - len(self._entered))
