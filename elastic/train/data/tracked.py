"""What a `State` asks of the samplers, streams and batches among its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from elastic.train.data.batch import GlobalBatch


class TrackedData:
    """The samplers, streams and batches among the things of a state.

    A sampler of another library counts as well, even if it has no more than `set_epoch`.
    """

    def __init__(self, things: Iterable[Any]) -> None:
        """Find them among all `things` of a state."""
        every = list(things)
        self._ordered = [thing for thing in every if hasattr(thing, "set_epoch")]
        self._positions = [thing for thing in self._ordered if hasattr(thing, "keep")]
        self._counting = [thing for thing in every if hasattr(thing, "steps_left")]
        self._batches = [thing for thing in every if isinstance(thing, GlobalBatch)]
        self._optimizers = [thing for thing in every if hasattr(thing, "param_groups")]
        self._schedulers = [thing for thing in every if hasattr(thing, "get_last_lr")]

    @property
    def seed(self) -> int:
        """The seed of the first sampler that has one, else 0."""
        return next((int(thing.seed) for thing in self._ordered if hasattr(thing, "seed")), 0)

    def set_epoch(self, epoch: int) -> None:
        """Tell samplers and streams which epoch it is."""
        for thing in self._ordered:
            thing.set_epoch(epoch)

    def keep(self) -> None:
        """A step was committed: the batches taken so far belong to it."""
        for thing in self._positions:
            thing.keep()

    def steps_left(self, epochs: int) -> int | None:
        """The steps that remain of `epochs` epochs; None while no sampler knows."""
        left = (thing.steps_left(epochs) for thing in self._counting)
        return next((steps for steps in left if steps is not None), None)

    def at_next_loop(self, call: Callable[[], None]) -> None:
        """Call this when the next loop begins over data that is in the middle of an epoch."""
        for thing in self._ordered:
            if getattr(thing, "consumed", 0) and hasattr(thing, "at_next_loop"):
                thing.at_next_loop(call)

    def scale_learning_rates(self) -> None:
        """Batches that grow with the world bring the learning rates along."""
        for batch in self._batches:
            batch.apply(self._optimizers, self._schedulers)


def with_batches(things: Mapping[str, Any]) -> dict[str, Any]:
    """The things of a state, and the batch of each sampler: the next world must know the learning rates it scaled."""
    known = {id(thing) for thing in things.values()}
    batches = {f"{name}_batch": getattr(thing, "batch", None) for name, thing in things.items()}
    found = {name: batch for name, batch in batches.items() if isinstance(batch, GlobalBatch) and name not in things}
    return {**things, **{name: batch for name, batch in found.items() if id(batch) not in known}}
