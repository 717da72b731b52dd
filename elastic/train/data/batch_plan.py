"""Which samples each rank takes at each step (pure: integers only).

The position in an epoch is one number, `consumed`: how many samples of the epoch's order all ranks together have used
in finished steps. After a change of the world size nothing else is needed: training continues at `consumed` in the same
order.

A *global step* is the next run of positions of the order; it ends with one optimizer step. Each rank has a contiguous
share of it, in one or more *micro-batches*. All ranks have the same number of micro-batches in each step, because the
ranks wait for each other in every backward pass (with FSDP also in every forward pass).

- With `per_rank` a step is the next `world * per_rank` positions. All ranks share the end of the epoch: if the last
  step would leave a rank without a sample, the last two steps are made equal in size.
- With `total` a step is the next `total` positions, the same at any world size. Shares differ by at most one sample.
  `max_per_rank` limits the samples that a rank holds at once, and splits its share into several micro-batches.

If a step has fewer samples than ranks, each rank without a sample takes one *padding* sample of weight 0. That happens
in the last step with `total`, after a change of the world size close to the end of an epoch, and with `per_rank=1`; in
every step if `total` is less than the number of ranks, and where `max_per_rank` splits one share into fewer
micro-batches than another.

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
    """How an order is split into steps: `per_rank` samples for each rank, or `total` samples for all ranks.

    `max_per_rank` requires `total` and limits the samples that a rank holds at once. With `drop_last` only whole steps
    are served, and the rest counts as consumed.
    """

    per_rank: int | None = None
    total: int | None = None
    max_per_rank: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        """Raise `ConfigError` if a value is wrong, or the values contradict each other."""
        if (self.per_rank is None) == (self.total is None):
            raise ConfigError("a batch needs either per_rank or total; give one of them")
        if self.max_per_rank is not None and self.total is None:
            raise ConfigError("max_per_rank requires total; with per_rank a rank holds per_rank samples")
        for name in ("per_rank", "total", "max_per_rank"):
            value = getattr(self, name)
            if value is None:
                continue
            if not hasattr(value, "__index__") or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} is {value!r}; write a number of samples, 1 or more")
            object.__setattr__(self, name, int(value))  # NumPy's integers are numbers too.

    def step(self, world: int) -> int:
        """Return the number of samples of a whole global step."""
        return self.total if self.total is not None else world * (self.per_rank or 1)

    def size(self, world: int) -> int:
        """Return the number of samples of the largest micro-batch."""
        share = -(-self.step(world) // world)
        return share if self.max_per_rank is None else min(self.max_per_rank, share)

    def micro_batches(self, world: int) -> int:
        """Return the number of micro-batches of a whole step, the same on all ranks."""
        return _pieces(self, -(-self.step(world) // world))

    def tail(self, left: int, world: int) -> tuple[int, tuple[int, ...]]:
        """Return the number of whole steps in `left` samples, and the sizes of the steps after them (at most two)."""
        step = self.step(world)
        whole, rest = divmod(left, step)
        if self.drop_last or not rest:
            return whole, ()
        pair = step + rest
        if self.total is None and rest < world and whole and pair >= 2 * world:
            return whole - 1, (pair - pair // 2, pair // 2)
        return whole, (rest,)

    def ahead(self, world: int) -> int:
        """Return how many samples must follow a whole step, unless none does, to serve that step whole."""
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
        """The positions to take, at least one."""
        return range(self.start, self.start + self.size) if self.size else range(self.padding, self.padding + 1)

    @property
    def weight(self) -> float:
        """The weight of its mean loss in the step."""
        return self.size * self.world / self.of


def micro_batches(start: int, of: int, rule: BatchRule, rank: int, world: int) -> list[MicroBatch]:
    """Return the micro-batches of a rank in the global step with the positions from `start` to `start + of`."""
    return [_micro(start, of, rule, rank, world, piece) for piece in range(_pieces(rule, -(-of // world)))]


def _micro(start: int, of: int, rule: BatchRule, rank: int, world: int, piece: int) -> MicroBatch:
    pieces = _pieces(rule, -(-of // world))
    at, share = _part(of, world, rank)
    offset, size = _part(share, pieces, piece)
    return MicroBatch(start + at + offset, size, of, piece == pieces - 1, world, start)


@dataclass(frozen=True)
class BatchPlan:
    """The steps of one iteration at one world size, over the samples from `consumed` to `length`."""

    length: int
    consumed: int
    world: int
    rule: BatchRule

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a position outside the epoch, or a world size below 1."""
        if not 0 <= self.consumed <= self.length:
            raise ConfigError(f"consumed is {self.consumed}, but the epoch has {self.length} samples")
        if self.world < 1:
            raise ConfigError(f"the world size is {self.world}; it must be 1 or more")
        whole, tail = self.rule.tail(self.length - self.consumed, self.world)
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_tail", tail)
        object.__setattr__(self, "_pieces", self.rule.micro_batches(self.world))

    _whole: int = 0
    _tail: tuple[int, ...] = ()
    _pieces: int = 1

    @property
    def steps(self) -> int:
        """The number of global steps."""
        return self._whole + len(self._tail)

    def samples(self, step: int) -> int:
        """Return the number of samples of a global step; steps count from 0 at the start of this iteration."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of {self.steps}")
        return self.rule.step(self.world) if step < self._whole else self._tail[step - self._whole]

    def start(self, step: int) -> int:
        """Return the first position of a step; for `step == steps`, the end of the last step."""
        start = self.consumed + min(step, self._whole) * self.rule.step(self.world)
        return start if step <= self._whole else start + sum(self._tail[: step - self._whole])

    def consumed_after(self, steps: int) -> int:
        """Return the position in the epoch after the first `steps` steps; after the last one it is `length`."""
        return self.length if steps >= self.steps else self.start(steps)

    def micro_batches(self, step: int, rank: int) -> list[MicroBatch]:
        """Return the micro-batches of a rank in a step: as many as on every other rank, at least one."""
        return micro_batches(self.start(step), self.samples(step), self.rule, rank, self.world)

    @property
    def batches(self) -> int:
        """The number of micro-batches of each rank in this iteration."""
        tail = (_pieces(self.rule, -(-size // self.world)) for size in self._tail)
        return self._whole * self._pieces + sum(tail)

    def steps_in(self, batches: int) -> int:
        """Return how many steps are complete after `batches` micro-batches of a rank."""
        return self.steps if batches >= self.batches else batches // self._pieces  # The last step may have fewer.

    def micro_batch(self, batch: int, rank: int) -> MicroBatch:
        """Return micro-batch number `batch`, from 0, of a rank in this iteration."""
        if not 0 <= batch < self.batches:
            raise IndexError(f"batch {batch} of {self.batches}")
        step, piece = divmod(batch, self._pieces)
        return _micro(self.start(step), self.samples(step), self.rule, rank, self.world, piece)

    def taken_by(self, rank: int) -> int:
        """Return how many samples a rank takes in this iteration, including padding."""
        kinds = [(0, self._whole)] if self._whole else []
        kinds += [(step, 1) for step in range(self._whole, self.steps)]
        return sum(times * sum(max(1, micro.size) for micro in self.micro_batches(step, rank)) for step, times in kinds)


def steps_of(samples: Iterable[Sample], rule: BatchRule, world: int) -> Iterator[tuple[list[Sample], bool]]:
    """Yield the global steps of a stream of unknown length, each with whether it is the last one.

    The steps are those of a `BatchPlan` of the stream's length. It reads `BatchRule.ahead` samples ahead.
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
    """Return the number of micro-batches of the largest share of a step."""
    return 1 if rule.max_per_rank is None else -(-share // rule.max_per_rank)


def _part(of: int, parts: int, number: int) -> tuple[int, int]:
    """Return start and size of one of `parts` contiguous parts whose sizes differ by at most one."""
    size, larger = divmod(of, parts)
    return number * size + min(number, larger), size + (number < larger)
