"""How large a batch is when the world changes: `elastic.GlobalBatch`.

Two ways::

    batch = elastic.GlobalBatch(total=512, max_per_rank=64)                # the same numbers in every world
    batch = elastic.GlobalBatch(per_rank=64, lr="linear", lr_base=256)     # the batch grows with the world

    sampler = elastic.ElasticSampler(dataset, batch=batch)
    loader = elastic.DataLoader(dataset, sampler=sampler)
    for x, y in loader:
        with batch.accumulate(model):
            batch.scale_loss(loss_of(model(x), y)).backward()              # the loss is a mean over x
        if batch.is_last_micro_batch:
            optimizer.step()
            optimizer.zero_grad()
            state.commit(every=50)

With `total` every step uses the same samples in every world, and the gradient is that of the mean over all of them. A
run whose world changes ends with the same parameters as one whose world does not, up to rounding, since sums are added
in another order.

What is *not* the same in another world:

- **Dropout** and other random layers: each rank draws its own numbers, so a sample meets another mask.
- **BatchNorm** in training takes mean and variance of the micro-batch that it sees, and those have other sizes in
  another world; padding samples count there too. SyncBatchNorm sees a whole step only where `max_per_rank` is not
  needed. GroupNorm and LayerNorm look at one sample at a time: nothing changes.
- A loss that is not a mean over samples (a sum, or a mean over tokens): `scale_loss` counts samples.
- Gradient clipping stays the same if it is done when `is_last_micro_batch`, on the summed gradient.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Protocol, TypeVar, cast

from elastic.errors import ConfigError
from elastic.train import torch_internals
from elastic.train.data.batch_plan import BatchRule
from elastic.train.process_group.topology import rank_and_world

LossT = TypeVar("LossT")

LR_RULES: Final[Mapping[str, Callable[[float], float]]] = {
    "linear": lambda times: times,
    "sqrt": math.sqrt,
    "none": lambda times: 1.0,
}
"""What the learning rate is multiplied by when the batch is `times` as large as `lr_base`.

linear: Goyal et al. 2017, for SGD. sqrt: Krizhevsky 2014, the usual choice for Adam (Malladi et al. 2022).
"""

GROUP_RATES: Final = ("lr", "initial_lr", "max_lr", "min_lr")
"""Learning rates in an optimizer's groups: its own, the schedulers' base, and those that OneCycleLR keeps there."""


class BatchSource(Protocol):
    """Where the batches come from: an `ElasticSampler` or an `ElasticStream`."""

    @property
    def world(self) -> int:
        """Number of ranks."""

    @property
    def weight(self) -> float:
        """What the batch just taken counts."""

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the batch just taken completes its step."""


class GlobalBatch:
    """How large a batch is in any world. Give it to a sampler or stream: `ElasticSampler(..., batch=batch)`.

    Either `total` samples in each step over all ranks, whatever the world; or `per_rank` samples for each rank, so that
    the batch grows with the world and the learning rate with it.

    Args:
        total: Samples of one step over all ranks. A rank gets its share; shares differ by at most one sample.
        max_per_rank: With `total`: the most samples that a rank can hold at once. A larger share is taken in several
            micro-batches of about equal size before a step, on all ranks the same number of them.
        per_rank: Samples of one step for each rank.
        lr: With `per_rank`: the rule for the learning rate: "linear" (Goyal et al. 2017), "sqrt" (Krizhevsky 2014) or
            "none".
        lr_base: The total batch, in samples, that the learning rate of the script is meant for.
        drop_last: Leave out the samples at the end of an epoch that make no whole step.

    Raises:
        ConfigError: The values do not fit together.
    """

    def __init__(
        self,
        total: int | None = None,
        max_per_rank: int | None = None,
        *,
        per_rank: int | None = None,
        lr: str = "none",
        lr_base: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self.rule = BatchRule(per_rank, total, max_per_rank, drop_last)
        if lr not in LR_RULES:
            raise ConfigError(f"lr is {lr!r}; write one of {', '.join(LR_RULES)}")
        if lr != "none" and total is not None:
            raise ConfigError(f'with total the batch never changes, so lr="{lr}" has nothing to do; leave it out')
        if lr != "none" and lr_base is None:
            raise ConfigError(f'lr="{lr}" needs lr_base: the total batch that your learning rate is meant for')
        if lr_base is not None and (not isinstance(lr_base, int) or lr_base < 1):
            raise ConfigError(f"lr_base is {lr_base!r}; it is a number of samples, 1 or more")
        self.lr = lr
        self.lr_base = lr_base
        self._applied = 1.0
        self._source: weakref.ref[BatchSource] | None = None

    def bind(self, source: BatchSource) -> None:
        """Take weights from `source`. `ElasticSampler` and `ElasticStream` call it."""
        if self._found() not in (None, source):
            raise ConfigError("this GlobalBatch belongs to another sampler; make one for each sampler")
        self._source = weakref.ref(source)

    @property
    def world(self) -> int:
        """Number of ranks that share a step."""
        source = self._found()
        return source.world if source is not None else rank_and_world()[1]

    @property
    def size(self) -> int:
        """The `batch_size` for this rank's loader, in the world as it is now: the most samples of a micro-batch."""
        return self.rule.size(self.world)

    @property
    def total(self) -> int:
        """Samples of one step over all ranks, in the world as it is now."""
        return self.rule.step(self.world)

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the batch just taken completes its step: now call `optimizer.step()`."""
        return self._bound().is_last_micro_batch

    @property
    def last(self) -> bool:
        """Deprecated: `is_last_micro_batch`."""
        renamed("GlobalBatch.last", "GlobalBatch.is_last_micro_batch")
        return self.is_last_micro_batch

    @property
    def weight(self) -> float:
        """What the mean loss of the batch just taken counts; 1.0 where all shares are equal, 0.0 for padding."""
        return self._bound().weight

    def scale_loss(self, loss: LossT) -> LossT:
        """Scale the loss of the batch just taken, so that gradients of unequal batches add up to that of the step.

        The gradient that DDP or FSDP averages over the ranks, summed over the micro-batches of the step, is then that
        of the mean over all samples of the step.

        Args:
            loss: The mean over the samples of the batch: a number or a tensor of any shape. That of a padding sample,
                which counts 0, must be finite, since 0 times infinity is NaN.

        Returns:
            `loss * weight`, with `weight = samples of the batch * ranks / samples of the step`.
        """
        return cast("LossT", cast("Any", loss) * self._bound().weight)

    def weigh(self, loss: LossT) -> LossT:
        """Deprecated: `scale_loss`."""
        renamed("GlobalBatch.weigh", "GlobalBatch.scale_loss")
        return self.scale_loss(loss)

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Around forward and backward of a micro-batch: gradients are exchanged only with the last one of a step.

        For DDP and FSDP1 (`no_sync`) and FSDP2 (`set_requires_gradient_sync`); another model is left as it is. With
        FSDP2 the gradients of whole parameters are kept on each rank until then; where that does not fit, leave this
        out: the result is the same.
        """
        if self._bound().is_last_micro_batch:
            yield
            return
        with ExitStack() as stack:
            for model in models:
                if hasattr(model, "set_requires_gradient_sync"):
                    model.set_requires_gradient_sync(False)
                    stack.callback(model.set_requires_gradient_sync, True)
                elif hasattr(model, "no_sync"):
                    stack.enter_context(model.no_sync())
            yield

    @property
    def factor(self) -> float:
        """What the rule multiplies the learning rate by, in the world as it is now."""
        return LR_RULES[self.lr](self.total / self.lr_base) if self.lr_base else 1.0

    def state_dict(self) -> dict[str, Any]:
        """The factor that the learning rates have now. Save it together with optimizer and scheduler."""
        return {"factor": self._applied}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Say which factor the learning rates have that were loaded with it. `apply` then brings them up to date."""
        self._applied = float(state["factor"])

    def apply(self, optimizers: Iterable[Any], schedulers: Iterable[Any] = ()) -> float:
        """Give the learning rates this world's factor: multiply each by the new factor over the one they have.

        Call it once everything is there: after optimizers and schedulers are made on a fresh start (they have the
        factor 1 then), and after optimizers, schedulers and this have loaded what was saved together. A second call
        changes nothing. It returns what it multiplied by.

        It changes `lr`, `initial_lr`, `max_lr` and `min_lr` of each group, and `base_lrs` and `max_lrs` of each
        scheduler, also of those within a SequentialLR or ChainedScheduler. An `eta_min` or `min_lrs` stays.
        """
        ratio = self.factor / self._applied
        if ratio != 1.0:
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    _scale_group(group, ratio)
            seen: set[int] = set()
            for scheduler in schedulers:
                _scale_scheduler(scheduler, ratio, seen)
            self._applied = self.factor
        return ratio

    def _found(self) -> BatchSource | None:
        return self._source() if self._source is not None else None

    def _bound(self) -> BatchSource:
        if (source := self._found()) is None:
            raise ConfigError("this GlobalBatch has no sampler; write ElasticSampler(dataset, batch=batch)")
        return source


def batch(total: int | None = None, most: int | None = None, **others: Any) -> GlobalBatch:
    """Deprecated: `GlobalBatch(total, max_per_rank)`."""
    renamed("elastic.batch(total, most)", "elastic.GlobalBatch(total, max_per_rank)")
    return GlobalBatch(total, most, **others)


def renamed(old: str, new: str) -> None:
    """Warn the caller of the caller that a name has changed; the old one goes with the next release."""
    warnings.warn(f"{old} is {new} now; the old name goes with the next release", DeprecationWarning, stacklevel=3)


def _scale_group(group: dict[str, Any], ratio: float) -> None:
    scaled = {name: group[name] * ratio for name in GROUP_RATES if name in group}
    for name, value in scaled.items():
        if hasattr(group[name], "copy_"):  # A tensor stays the same one: a compiled step may have it by reference.
            group[name].copy_(value)
        else:
            group[name] = value


def _scale_scheduler(scheduler: Any, ratio: float, seen: set[int]) -> None:
    if id(scheduler) in seen:
        return
    seen.add(id(scheduler))
    for name in torch_internals.SCHEDULER_RATES:
        if isinstance(rates := getattr(scheduler, name, None), list):
            setattr(scheduler, name, [rate * ratio for rate in rates])
    for inner in torch_internals.inner_schedulers(scheduler):
        _scale_scheduler(inner, ratio, seen)
