"""Where a sampler or a stream is in its epoch, and one loop over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Generic, Protocol, TypeVar

from elastic.errors import ConfigError
from elastic.train import report
from elastic.train.data.batch import GlobalBatch, renamed
from elastic.train.data.batch_plan import BatchPlan, BatchRule, MicroBatch
from elastic.train.process_group.topology import rank_and_world


class RunningLoop(Protocol):
    """One loop over a sampler or stream."""

    @property
    def world(self) -> int:
        """The ranks that share the data."""

    @property
    def consumed(self) -> int:
        """The place in the epoch as of the batches taken now."""

    @property
    def current(self) -> MicroBatch | None:
        """The batch just taken; None before the first one."""

    def keep(self) -> None:
        """The batches taken so far are committed."""

    def advance(self, batches: int) -> None:
        """Count by hand from now on."""


class CountsBatches(Protocol):
    """Knows how many batches a loop has taken."""

    @property
    def taken(self) -> int:
        """The number of batches."""


@dataclass(slots=True)
class BatchCount:
    """The batches that a loop has taken."""

    taken: int = 0


@dataclass(frozen=True, slots=True)
class LoaderInfo:
    """What a loader takes from a sampler.

    `batch_size` None: one index at a time. `count` is None where nobody can tell how many batches the loop has taken.
    `problem` says why the loader cannot be served, "" if it can.
    """

    batch_size: int | None = None
    drop_last: bool = False
    count: CountsBatches | None = None
    problem: str = ""


Loop = TypeVar("Loop", bound=RunningLoop)


class EpochPosition(Generic[Loop]):
    """The place in an epoch of an `ElasticSampler` or an `ElasticStream`, and what is asked of the batch just taken."""

    def __init__(self, batch: GlobalBatch | None, rank: int | None, world: int | None) -> None:
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
        """Start an epoch; nothing changes if it is the current one.

        A line warns if the epoch is older than that of the checkpoint: then the loop over epochs began at 0 again.
        """
        if epoch != self._epoch:
            if epoch < self._restored and rank_and_world(*self._place)[0] == 0:
                report.log_to_agent(
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
        """The factor for the mean loss of the batch just taken; 1.0 where all shares are equal, 0.0 for padding.

        `(loss * sampler.weight).backward()` under DDP gives the gradient of the mean over the whole step.
        """
        return self._now().weight

    @property
    def samples(self) -> int:
        """Samples in the batch just taken by this rank; 0 if it is padding."""
        return self._now().size

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the batch just taken completes this rank's share of its step."""
        return self._now().last

    @property
    def last(self) -> bool:
        """Deprecated: `is_last_micro_batch`."""
        renamed(f"{type(self).__name__}.last", f"{type(self).__name__}.is_last_micro_batch")
        return self.is_last_micro_batch

    def _now(self) -> MicroBatch:
        if self._loop is None or (taken := self._loop.current) is None:
            raise ConfigError(f"{type(self).__name__}: no batch has been taken yet; ask within the loop over it")
        return taken


class SamplerIteration:
    """One iteration over an `ElasticSampler`: its plan, and how far it is."""

    def __init__(self, plan: BatchPlan, rank: int, count: CountsBatches | None, *, by_hand: bool) -> None:
        """Nothing is taken yet. `by_hand`: what is taken is told to `advance`."""
        self.plan = plan
        self.rank = rank
        self._count = count
        self.cut = 0
        self.kept = 0
        """How many batches are committed."""
        self._by_hand = 0 if by_hand else None
        self._thread = 0

    @property
    def world(self) -> int:
        """The ranks that share the data."""
        return self.plan.world

    def next_cut(self) -> MicroBatch:
        """The next micro-batch that is asked for. Whoever asks may be ahead of the loop."""
        micro = self.plan.micro_batch(self.cut, self.rank)
        self.cut += 1
        self._thread = get_ident()
        return micro

    @property
    def taken(self) -> int:
        """How many batches the training loop has taken. Raises `ConfigError` if nobody can know."""
        if self._by_hand is not None:
            return self._by_hand
        if self._count is not None:
            return self._count.taken
        if self.cut:
            raise ConfigError(
                "ElasticSampler: no DataLoader is seen that takes from this sampler; use elastic.DataLoader, or call "
                "sampler.advance(1) with each batch, before the commit"
            )
        return 0

    def advance(self, batches: int) -> None:
        """Count by hand, from now on."""
        self._by_hand = min((self._by_hand or 0) + batches, self.plan.batches)

    def keep(self) -> None:
        """The batches taken so far are committed. Raises `ConfigError` if another thread takes them."""
        if self._by_hand is None and self._thread != get_ident():
            check_thread("ElasticSampler", self._thread)
        if (taken := self.taken) > self.kept:
            self.kept = taken

    @property
    def consumed(self) -> int:
        """The place in the epoch as of the batches taken."""
        return self._place(self.taken)

    @property
    def committed(self) -> int:
        """The place in the epoch as of the batches committed."""
        return self._place(self.kept)

    @property
    def current(self) -> MicroBatch | None:
        """The micro-batch just taken."""
        return self.plan.micro_batch(taken - 1, self.rank) if (taken := self.taken) else None

    def _place(self, batches: int) -> int:
        return self.plan.consumed_after(self.plan.steps_in(batches))


def check_thread(who: str, thread: int) -> None:
    """Raise `ConfigError` if batches are taken by a thread (0: none yet) that is not the one that commits them."""
    if thread not in (0, get_ident()):
        raise ConfigError(
            f"{who}: a thread takes batches ahead of the loop that commits them; call advance() of the "
            f"{who} with each batch that the loop gets, from the first one on"
        )


def rule_for(batch: GlobalBatch | None, loader: LoaderInfo, world: int, before: int | None) -> BatchRule:
    """How the order is cut for a loader; `before` is the batch size of an earlier loop, for a call of len(sampler).

    Raises `ConfigError` if the DataLoader's settings cannot serve the batch.
    """
    size = loader.batch_size
    if batch is None:
        before = None if loader.count is not None else before
        return BatchRule(per_rank=size or before or 1, drop_last=loader.drop_last)
    rule = batch.rule
    if rule.total is not None and loader.drop_last:
        raise ConfigError(
            "ElasticSampler: DataLoader(drop_last=True) cannot serve the uneven shares of a fixed total; leave it "
            "out, and write GlobalBatch(..., drop_last=True) to leave out the tail of an epoch"
        )
    if loader.count is not None and size is None:
        raise ConfigError("ElasticSampler: with a GlobalBatch, write DataLoader(batch_size=batch.size)")
    needed = rule.size(world)
    if size is not None and (size < needed or (rule.per_rank is not None and size != needed)):
        raise ConfigError(
            f"ElasticSampler: the DataLoader's batch_size is {size}, and a rank's batch has {needed} samples in a "
            f"world of {world}; write DataLoader(batch_size=batch.size)"
        )
    return BatchRule(rule.per_rank, rule.total, rule.max_per_rank, rule.drop_last or loader.drop_last)
