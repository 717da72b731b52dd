"""The samplers, streams and batches among the components of a `State`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from elastic.train.data.batch import GlobalBatch


class TrackedData:
    """The samplers, streams and batches of a state, including samplers of other libraries that have `set_epoch`."""

    def __init__(self, things: Iterable[Any]) -> None:
        """Find them among all components and values of a state."""
        every = list(things)
        self._ordered = [thing for thing in every if hasattr(thing, "set_epoch")]
        self._positions = [thing for thing in self._ordered if hasattr(thing, "keep")]
        self._counting = [thing for thing in every if hasattr(thing, "steps_left")]
        self._batches = [thing for thing in every if isinstance(thing, GlobalBatch)]
        self._optimizers = [thing for thing in every if hasattr(thing, "param_groups")]
        self._schedulers = [thing for thing in every if hasattr(thing, "get_last_lr")]

    @property
    def seed(self) -> int:
        """The seed of the first sampler with a seed, else 0."""
        return next((int(thing.seed) for thing in self._ordered if hasattr(thing, "seed")), 0)

    def set_epoch(self, epoch: int) -> None:
        """Call `set_epoch` of the samplers and streams."""
        for thing in self._ordered:
            thing.set_epoch(epoch)

    def keep(self) -> None:
        """Record that the batches taken so far are committed."""
        for thing in self._positions:
            thing.keep()

    def steps_left(self, epochs: int) -> int | None:
        """Return the number of remaining steps of `epochs` epochs; None if no sampler knows it."""
        left = (thing.steps_left(epochs) for thing in self._counting)
        return next((steps for steps in left if steps is not None), None)

    def at_next_loop(self, call: Callable[[], None]) -> None:
        """Call `call` when the next loop starts over data in the middle of an epoch."""
        for thing in self._ordered:
            if getattr(thing, "consumed", 0) and hasattr(thing, "at_next_loop"):
                thing.at_next_loop(call)

    def scale_learning_rates(self) -> None:
        """Scale the learning rates of batches that grow with the world size."""
        for batch in self._batches:
            batch.apply(self._optimizers, self._schedulers)


def with_batches(things: Mapping[str, Any]) -> dict[str, Any]:
    """Add the `GlobalBatch` of each sampler, whose learning-rate factor must be saved, to the things of a state."""
    known = {id(thing) for thing in things.values()}
    batches = {f"{name}_batch": getattr(thing, "batch", None) for name, thing in things.items()}
    found = {name: batch for name, batch in batches.items() if isinstance(batch, GlobalBatch) and name not in things}
    return {**things, **{name: batch for name, batch in found.items() if id(batch) not in known}}
