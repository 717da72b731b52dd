"""The position of a sampler or stream in its epoch, and one loop over it."""

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
        """The number of ranks that share the data."""

    @property
    def consumed(self) -> int:
        """The position in the epoch after the batches taken so far."""

    @property
    def current(self) -> MicroBatch | None:
        """The current batch; None before the first one."""

    def keep(self) -> None:
        """Record that the batches taken so far are committed."""

    def advance(self, batches: int) -> None:
        """Count `batches` more; from now on only this counts."""


class CountsBatches(Protocol):
    """Counts the batches that a loop has taken."""

    @property
    def taken(self) -> int:
        """The number of batches."""


@dataclass(slots=True)
class BatchCount:
    """The number of batches that a loop has taken."""

    taken: int = 0


@dataclass(frozen=True, slots=True)
class LoaderInfo:
    """How a loader reads from a sampler.

    `batch_size` None: one index at a time. `count` is None if the number of batches that the loop has taken is unknown.
    `problem` is the reason why the loader cannot be served, "" if it can.
    """

    batch_size: int | None = None
    drop_last: bool = False
    count: CountsBatches | None = None
    problem: str = ""


Loop = TypeVar("Loop", bound=RunningLoop)


class EpochPosition(Generic[Loop]):
    """The position of an `ElasticSampler` or `ElasticStream` in its epoch, and the properties of the current batch."""

    def __init__(self, batch: GlobalBatch | None, rank: int | None, world: int | None) -> None:
        rank_and_world(rank, world)
        self.batch = batch
        self._place = (rank, world)
        self._epoch = 0
        self._base = 0
        self._restored = 0
        """The epoch of the checkpoint, until another epoch starts."""
        self._loop: Loop | None = None
        self._by_hand = False
        self._begun: Callable[[], None] | None = None
        if batch is not None:
            batch.bind(self)

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._epoch

    @property
    def consumed(self) -> int:
        """The number of samples of this epoch that all ranks together have used, with the batches taken so far."""
        return self._base if self._loop is None else self._loop.consumed

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; does nothing if it is the current one.

        It logs a warning if the epoch is older than that of the checkpoint, because the loop over epochs then started
        at 0 again.

        Args:
            epoch: The number of the epoch, from 0.
        """
        if epoch != self._epoch:
            if epoch < self._restored and rank_and_world(*self._place)[0] == 0:
                report.log_to_agent(
                    f"{type(self).__name__}: epoch {epoch} starts, but the checkpoint was in epoch {self._restored}; "
                    "loop over elastic.epochs(state, n), or start at sampler.epoch, so that no epoch is repeated",
                    warn=True,
                )
            self._restored = 0
            self._epoch, self._base, self._loop, self._begun = epoch, 0, None, None

    def advance(self, batches: int = 1) -> None:
        """Report that the training loop has received more batches of this rank; from then on only this counts.

        Call it if something between the DataLoader and the loop prefetches batches (a prefetcher to the GPU, a thread)
        or combines them, so that the number of batches that the loop has taken is unknown. Call it for each batch, from
        the first one on, as soon as the loop receives it, so that `weight` refers to that batch.

        Args:
            batches: The number of batches since the last call.
        """
        self._by_hand = True
        if self._loop is not None:
            self._loop.advance(batches)

    def keep(self) -> None:
        """Record that the batches taken so far are committed, without creating a state dict.

        A new loop in the same epoch then continues after them. Creating a state dict has the same effect.

        Raises:
            ConfigError: The number of batches that the loop has taken is unknown, or another thread takes them.
        """
        if self._loop is not None:
            self._loop.keep()

    @property
    def world(self) -> int:
        """The number of ranks that share the data: that of the running loop, or else the current one."""
        return self._loop.world if self._loop is not None else rank_and_world(*self._place)[1]

    @property
    def weight(self) -> float:
        """The weight of the mean loss of the current batch: 1.0 if all shares are equal, 0.0 for padding.

        `(loss * sampler.weight).backward()` under DDP gives the gradient of the mean over the whole step.
        """
        return self._now().weight

    @property
    def samples(self) -> int:
        """The number of samples in the current batch of this rank; 0 for padding."""
        return self._now().size

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the current batch completes this rank's share of its step."""
        return self._now().last

    @property
    def last(self) -> bool:
        """Deprecated: use `is_last_micro_batch`."""
        renamed(f"{type(self).__name__}.last", f"{type(self).__name__}.is_last_micro_batch")
        return self.is_last_micro_batch

    def _now(self) -> MicroBatch:
        if self._loop is None or (taken := self._loop.current) is None:
            raise ConfigError(f"{type(self).__name__}: no batch has been taken yet; read this within the loop")
        return taken


class SamplerIteration:
    """One iteration over an `ElasticSampler`: its plan and its position."""

    def __init__(self, plan: BatchPlan, rank: int, count: CountsBatches | None, *, by_hand: bool) -> None:
        """`by_hand`: only `advance` counts the batches."""
        self.plan = plan
        self.rank = rank
        self._count = count
        self.cut = 0
        self.kept = 0
        """The number of committed batches."""
        self._by_hand = 0 if by_hand else None
        self._thread = 0

    @property
    def world(self) -> int:
        """The number of ranks that share the data."""
        return self.plan.world

    def next_cut(self) -> MicroBatch:
        """Return the next micro-batch for a loader, which may prefetch batches for the loop."""
        micro = self.plan.micro_batch(self.cut, self.rank)
        self.cut += 1
        self._thread = get_ident()
        return micro

    @property
    def taken(self) -> int:
        """The number of batches that the training loop has taken. Raises `ConfigError` if it is unknown."""
        if self._by_hand is not None:
            return self._by_hand
        if self._count is not None:
            return self._count.taken
        if self.cut:
            raise ConfigError(
                "ElasticSampler: cannot find the DataLoader that reads from this sampler; use elastic.DataLoader, or "
                "call sampler.advance(1) for each batch, before the commit"
            )
        return 0

    def advance(self, batches: int) -> None:
        """Count `batches` more; from now on only this counts."""
        self._by_hand = min((self._by_hand or 0) + batches, self.plan.batches)

    def keep(self) -> None:
        """Record that the batches taken so far are committed. Raises `ConfigError` if another thread takes them."""
        if self._by_hand is None and self._thread != get_ident():
            check_thread("ElasticSampler", self._thread)
        if (taken := self.taken) > self.kept:
            self.kept = taken

    @property
    def consumed(self) -> int:
        """The position in the epoch after the batches taken so far."""
        return self._place(self.taken)

    @property
    def committed(self) -> int:
        """The position in the epoch after the committed batches."""
        return self._place(self.kept)

    @property
    def current(self) -> MicroBatch | None:
        """The current micro-batch; None before the first one."""
        return self.plan.micro_batch(taken - 1, self.rank) if (taken := self.taken) else None

    def _place(self, batches: int) -> int:
        return self.plan.consumed_after(self.plan.steps_in(batches))


def check_thread(who: str, thread: int) -> None:
    """Raise `ConfigError` if `thread`, which takes the batches (0: none yet), is not the thread that commits them."""
    if thread not in (0, get_ident()):
        raise ConfigError(
            f"{who}: a thread prefetches batches for the loop that commits them; call advance() of the {who} for each "
            "batch that the loop receives, from the first one on"
        )


def rule_for(batch: GlobalBatch | None, loader: LoaderInfo, world: int, before: int | None) -> BatchRule:
    """Return the rule that splits the order for a loader; `before` is the batch size of an earlier loop, for len().

    Raises `ConfigError` if the settings of the DataLoader contradict the batch.
    """
    size = loader.batch_size
    if batch is None:
        before = None if loader.count is not None else before
        return BatchRule(per_rank=size or before or 1, drop_last=loader.drop_last)
    rule = batch.rule
    if rule.total is not None and loader.drop_last:
        raise ConfigError(
            "ElasticSampler: DataLoader(drop_last=True) cannot serve the unequal shares of a fixed total; leave it "
            "out, and write GlobalBatch(..., drop_last=True) to drop the incomplete last step of an epoch"
        )
    if loader.count is not None and size is None:
        raise ConfigError("ElasticSampler: with a GlobalBatch, write DataLoader(batch_size=batch.size)")
    needed = rule.size(world)
    if size is not None and (size < needed or (rule.per_rank is not None and size != needed)):
        raise ConfigError(
            f"ElasticSampler: the DataLoader's batch_size is {size}, but the batch of a rank has {needed} samples at "
            f"world size {world}; write DataLoader(batch_size=batch.size)"
        )
    return BatchRule(rule.per_rank, rule.total, rule.max_per_rank, rule.drop_last or loader.drop_last)
