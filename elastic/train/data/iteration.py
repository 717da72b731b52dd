"""One loop over a sampler: what it is to serve, and how far it is."""

from __future__ import annotations

from threading import get_ident

from elastic.errors import ConfigError
from elastic.train.data.batch import Batch
from elastic.train.data.batch_plan import Micro, Plan, Rule
from elastic.train.data.loader_probe import Caller


class Iteration:
    """One iteration over an `ElasticSampler`: its plan, and how far it is."""

    def __init__(self, plan: Plan, rank: int, caller: Caller, *, by_hand: bool) -> None:
        """Nothing is taken yet. `by_hand`: what is taken is told to `advance`."""
        self.plan = plan
        self.rank = rank
        self.caller = caller
        self.cut = 0
        self.kept = 0
        """How many batches are committed."""
        self._by_hand = 0 if by_hand else None
        self._thread = 0

    @property
    def world(self) -> int:
        """The ranks that share the data."""
        return self.plan.world

    def next_cut(self) -> Micro:
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
        if self.caller.loop is not None:
            return self.caller.loop.taken
        if self.cut:
            raise ConfigError(
                "ElasticSampler: no DataLoader of torch is seen that takes from this sampler; call "
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
    def current(self) -> Micro | None:
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


def rule_for(batch: Batch | None, caller: Caller, world: int, before: int | None) -> Rule:
    """How the order is cut for who asks; `before` is the batch size of an earlier loop, for who only asks the length.

    Raises `ConfigError` if the DataLoader's settings cannot serve the batch.
    """
    size = caller.batch_size
    if batch is None:
        return Rule(per_rank=size or (None if caller.loop is not None else before) or 1, drop_last=caller.drop_last)
    rule = batch.rule
    if rule.total is not None and caller.drop_last:
        raise ConfigError(
            "ElasticSampler: DataLoader(drop_last=True) cannot serve the uneven shares of a fixed total; leave it "
            "out, and write elastic.batch(..., drop_last=True) to leave out the tail of an epoch"
        )
    if caller.loop is not None and size is None:
        raise ConfigError("ElasticSampler: with an elastic.batch, write DataLoader(batch_size=batch.size)")
    needed = rule.size(world)
    if size is not None and (size < needed or (rule.per_rank is not None and size != needed)):
        raise ConfigError(
            f"ElasticSampler: the DataLoader's batch_size is {size}, and a rank's batch has {needed} samples in a "
            f"world of {world}; write DataLoader(batch_size=batch.size)"
        )
    return Rule(rule.per_rank, rule.total, rule.most, rule.drop_last or caller.drop_last)
