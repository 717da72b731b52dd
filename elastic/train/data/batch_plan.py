"""Which samples each rank takes at each step: integers only, no torch, no clock.

The place in an epoch is one number, `consumed`: how many samples of the epoch's order the whole world has used in
finished steps. A world change needs nothing else: the new world goes on at `consumed` in the same order.

A *global step* is the next run of positions of the order; it ends with one optimizer step. Each rank has a contiguous
share of it, in one or more *micro-batches*. All ranks have the same number of micro-batches in each step, because
DDP and FSDP wait for each other in every backward (FSDP also in every forward).

- With `per_rank` a step is the next `world * per_rank` positions. The tail of the epoch is shared by all: if the last
  step would leave a rank without a sample, the last two steps are made even.
- With `total` a step is the next `total` positions, in every world the same ones. Shares differ by at most one
  sample. A rank that may hold at most `max_per_rank` samples at once takes its share in several micro-batches.

Where fewer samples than ranks are left for a step, the ranks that go without take one *padding* sample of weight 0.
That happens in the last step with `total`, after a world change close to the end of an epoch, and with `per_rank=1`; in
every step if `total` is less than the ranks, and where `max_per_rank` cuts a share into fewer micro-batches than
another one.

The weight of a micro-batch is `samples * world / samples of the global step`. DDP and FSDP average gradients over the
ranks, so the sum of all `(mean loss * weight).backward()` is the gradient of the mean over the global step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from elastic.errors import ConfigError

Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How an order is cut into steps: by `per_rank` samples for each rank, or by `total` for all.

    `max_per_rank` goes with `total`: how many samples a rank may hold at once. With `drop_last` only whole steps are
    served, and what is left after them counts as consumed.
    """

    per_rank: int | None = None
    total: int | None = None
    max_per_rank: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` if the values do not fit together."""
        if (self.per_rank is None) == (self.total is None):
            raise ConfigError("a batch needs either per_rank or total; give one of them")
        if self.max_per_rank is not None and self.total is None:
            raise ConfigError("max_per_rank goes with total; with per_rank a rank holds per_rank samples")
        for name in ("per_rank", "total", "max_per_rank"):
            value = getattr(self, name)
            if value is None:
                continue
            if not hasattr(value, "__index__") or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it is a number of samples, 1 or more")
            object.__setattr__(self, name, int(value))  # Numpy's integers are numbers, too.

    def step(self, world: int) -> int:
        """Samples of a whole global step."""
        return self.total if self.total is not None else world * (self.per_rank or 1)

    def size(self, world: int) -> int:
        """The most samples that a micro-batch of a rank may have."""
        share = -(-self.step(world) // world)
        return share if self.max_per_rank is None else min(self.max_per_rank, share)

    def micro_batches(self, world: int) -> int:
        """Into how many micro-batches a rank's share of a whole step is cut; the same for all ranks."""
        return _pieces(self, -(-self.step(world) // world))

    def tail(self, left: int, world: int) -> tuple[int, tuple[int, ...]]:
        """How many whole steps `left` samples make, and the sizes of the steps after them (at most two)."""
        step = self.step(world)
        whole, rest = divmod(left, step)
        if self.drop_last or not rest:
            return whole, ()
        pair = step + rest
        if self.total is None and rest < world and whole and pair >= 2 * world:
            return whole - 1, (pair - pair // 2, pair // 2)
        return whole, (rest,)

    def ahead(self, world: int) -> int:
        """How many samples after a whole step must be there for the step to be served whole, unless none is."""
        if self.drop_last:
            return self.step(world)
        return 1 if self.total is not None else world


class MicroBatch(NamedTuple):
    """One micro-batch of one rank.

    `start` and `size`: its positions in the epoch's order; size 0 for padding. `of`: the samples of the whole global
    step, over all ranks. `last`: it completes the rank's share of the step. `padding`: a position to take where size
    is 0.
    """

    start: int
    size: int
    of: int
    last: bool
    world: int
    padding: int

    @property
    def positions(self) -> range:
        """The positions to take, never none."""
        return range(self.start, self.start + self.size) if self.size else range(self.padding, self.padding + 1)

    @property
    def weight(self) -> float:
        """What its mean loss counts in the step."""
        return self.size * self.world / self.of


def micro_batches(start: int, of: int, rule: BatchRule, rank: int, world: int) -> list[MicroBatch]:
    """The micro-batches of a rank in the global step that has the positions from `start` to `start + of`."""
    return [_micro(start, of, rule, rank, world, piece) for piece in range(_pieces(rule, -(-of // world)))]


def _micro(start: int, of: int, rule: BatchRule, rank: int, world: int, piece: int) -> MicroBatch:
    pieces = _pieces(rule, -(-of // world))
    at, share = _part(of, world, rank)
    offset, size = _part(share, pieces, piece)
    return MicroBatch(start + at + offset, size, of, piece == pieces - 1, world, start)


@dataclass(frozen=True)
class BatchPlan:
    """The steps of one iteration: what a world does with the samples from `consumed` to `length`."""

    length: int
    consumed: int
    world: int
    rule: BatchRule

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a place that is not in the epoch."""
        if not 0 <= self.consumed <= self.length:
            raise ConfigError(f"{self.consumed} of {self.length} samples cannot be consumed")
        if self.world < 1:
            raise ConfigError(f"a world has 1 rank or more, not {self.world}")
        whole, tail = self.rule.tail(self.length - self.consumed, self.world)
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_tail", tail)
        object.__setattr__(self, "_pieces", self.rule.micro_batches(self.world))

    _whole: int = 0
    _tail: tuple[int, ...] = ()
    _pieces: int = 1

    @property
    def steps(self) -> int:
        """How many global steps there are."""
        return self._whole + len(self._tail)

    def samples(self, step: int) -> int:
        """Samples of a global step; steps count from 0 at the start of this iteration."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of {self.steps}")
        return self.rule.step(self.world) if step < self._whole else self._tail[step - self._whole]

    def start(self, step: int) -> int:
        """The first position of a step; that of `steps` is where the last one ends."""
        start = self.consumed + min(step, self._whole) * self.rule.step(self.world)
        return start if step <= self._whole else start + sum(self._tail[: step - self._whole])

    def consumed_after(self, steps: int) -> int:
        """The place in the epoch when so many steps are done. After the last one nothing is left."""
        return self.length if steps >= self.steps else self.start(steps)

    def micro_batches(self, step: int, rank: int) -> list[MicroBatch]:
        """What a rank does in a step: as many micro-batches as every other rank, at least one."""
        return micro_batches(self.start(step), self.samples(step), self.rule, rank, self.world)

    @property
    def batches(self) -> int:
        """How many micro-batches each rank takes in all."""
        tail = (_pieces(self.rule, -(-size // self.world)) for size in self._tail)
        return self._whole * self._pieces + sum(tail)

    def steps_in(self, batches: int) -> int:
        """How many steps are complete when a rank has taken so many micro-batches."""
        return self.steps if batches >= self.batches else batches // self._pieces  # The last step may have fewer.

    def micro_batch(self, batch: int, rank: int) -> MicroBatch:
        """The micro-batch that a rank takes as number `batch` of this iteration, counted from 0."""
        if not 0 <= batch < self.batches:
            raise IndexError(f"batch {batch} of {self.batches}")
        step, piece = divmod(batch, self._pieces)
        return _micro(self.start(step), self.samples(step), self.rule, rank, self.world, piece)

    def taken_by(self, rank: int) -> int:
        """How many samples a rank takes in all, padding included."""
        kinds = [(0, self._whole)] if self._whole else []
        kinds += [(step, 1) for step in range(self._whole, self.steps)]
        return sum(times * sum(max(1, one.size) for one in self.micro_batches(step, rank)) for step, times in kinds)


def steps_of(samples: Iterable[Sample], rule: BatchRule, world: int) -> Iterator[tuple[list[Sample], bool]]:
    """The global steps of a stream whose length is not known, each with whether it is the last one.

    They are those of a `BatchPlan` of the stream's length. It reads ahead by what that takes: `BatchRule.ahead`
    samples.
    """
    source = iter(samples)
    step, ahead = rule.step(world), rule.ahead(world)
    have: list[Sample] = []
    while True:
        have += islice(source, step + ahead - len(have))
        if len(have) == step + ahead:
            now, have = have[:step], have[step:]
            yield now, False
            continue
        plan = BatchPlan(len(have), 0, world, rule)
        for number in range(plan.steps):
            at = plan.start(number)
            yield have[at : at + plan.samples(number)], number == plan.steps - 1
        return


def _pieces(rule: BatchRule, share: int) -> int:
    """Into how many micro-batches the largest share of a step is cut."""
    return 1 if rule.max_per_rank is None else -(-share // rule.max_per_rank)


def _part(of: int, parts: int, number: int) -> tuple[int, int]:
    """Start and size of one of `parts` contiguous parts whose sizes differ by at most one."""
    size, larger = divmod(of, parts)
    return number * size + min(number, larger), size + (number < larger)
