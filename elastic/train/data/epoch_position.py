"""Where a sampler or a stream is in its epoch: what both keep and say, however their samples are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from elastic.errors import ConfigError
from elastic.train import agent_log
from elastic.train.data.batch import Batch
from elastic.train.ranks import rank_and_world


class Taken(Protocol):
    """A batch that a loop has."""

    @property
    def size(self) -> int:
        """Its samples, 0 for padding."""

    @property
    def of(self) -> int:
        """The samples of its whole step, over all ranks."""

    @property
    def last(self) -> bool:
        """Whether it completes this rank's share of the step."""


class Running(Protocol):
    """One loop over a sampler or stream."""

    @property
    def world(self) -> int:
        """The ranks that share the data."""

    @property
    def consumed(self) -> int:
        """The place in the epoch as of the batches taken now."""

    @property
    def current(self) -> Taken | None:
        """The batch just taken; None before the first one."""

    def keep(self) -> None:
        """The batches taken so far are committed."""

    def advance(self, batches: int) -> None:
        """Count by hand from now on."""


Loop = TypeVar("Loop", bound=Running)


class InEpoch(Generic[Loop]):
    """The place in an epoch of an `ElasticSampler` or an `ElasticStream`, and what is asked of the batch just taken."""

    def __init__(self, batch: Batch | None, rank: int | None, world: int | None) -> None:
        """Nothing is consumed; epoch 0."""
        rank_and_world(rank, world)
        self.batch = batch
        self._place = (rank, world)
        self._epoch = 0
        self._base = 0
        self._restored = 0
        """The epoch of the checkpoint, until another one is begun."""
        self._loop: Loop | None = None
        self._by_hand = False
        self._begun: Callable[[], None] | None = None
        if batch is not None:
            batch.bind(self)

    @property
    def epoch(self) -> int:
        """The epoch whose samples are served."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """How many samples of this epoch all ranks together have used, as of the batches taken now."""
        return self._base if self._loop is None else self._loop.consumed

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch. The epoch that it is in already goes on where it is.

        A line says so if it is one before that of the checkpoint: a loop that begins at 0 again would do epochs again.
        """
        if epoch != self._epoch:
            if epoch < self._restored and rank_and_world(*self._place)[0] == 0:
                agent_log.say(
                    f"{type(self).__name__}: epoch {epoch} begins, though the checkpoint was in {self._restored}; "
                    "loop over elastic.epochs(state, n), or from the sampler's own epoch on, to do no epoch again",
                    warn=True,
                )
            self._restored = 0
            self._epoch, self._base, self._loop, self._begun = epoch, 0, None, None

    def advance(self, batches: int = 1) -> None:
        """Say that the loop has got so many more batches of this rank; from then on only this counts.

        Needed where it is not seen how many the loop has taken: where something between the DataLoader and the loop
        takes batches ahead (a prefetcher to the card, a thread) or makes others of them. Call it with each batch, from
        the first one on, as soon as the loop has it, so that `weight` is that of this one.
        """
        self._by_hand = True
        if self._loop is not None:
            self._loop.advance(batches)

    def keep(self) -> None:
        """Say that the batches taken so far are committed, without asking for the state.

        A new loop in the same epoch then goes on after them. `state_dict` does it too.
        """
        if self._loop is not None:
            self._loop.keep()

    @property
    def world(self) -> int:
        """The ranks that share the data: those of this loop, or those that there are now."""
        return self._loop.world if self._loop is not None else rank_and_world(*self._place)[1]

    @property
    def weight(self) -> float:
        """What the mean loss of the batch just taken counts in its step; 1.0 where all shares are equal.

        `(loss * sampler.weight).backward()` under DDP gives the gradient of the mean over the whole step.
        """
        now = self._now()
        return now.size * self.world / now.of

    @property
    def samples(self) -> int:
        """Samples in the batch just taken by this rank; 0 if it is padding."""
        return self._now().size

    @property
    def last(self) -> bool:
        """Whether the batch just taken completes this rank's share of its step."""
        return self._now().last

    def _now(self) -> Taken:
        if self._loop is None or (taken := self._loop.current) is None:
            raise ConfigError(f"{type(self).__name__}: no batch has been taken yet; ask within the loop over it")
        return taken
