"""`elastic.GlobalBatch`: the batch size when the world size changes.

Two ways::

    batch = elastic.GlobalBatch(total=512, max_per_rank=64)                # the same global batch at any world size
    batch = elastic.GlobalBatch(per_rank=64, lr="linear", lr_base=256)     # the global batch grows with the world size

    sampler = elastic.ElasticSampler(dataset, batch=batch)
    loader = elastic.DataLoader(dataset, sampler=sampler)
    for x, y in loader:
        with batch.accumulate(model):
            batch.scale_loss(loss_of(model(x), y)).backward()              # the loss is a mean over x
        if batch.is_last_micro_batch:
            optimizer.step()
            optimizer.zero_grad()
            state.commit(every=50)

With `total` every step uses the same samples at any world size, and its gradient is that of the mean over all of them.
A run whose world size changes ends with the same parameters as one whose world size does not, up to rounding, because
the order of the additions differs.

What is *not* the same at another world size:

- **Dropout** and other random layers: each rank has its own RNG, so a sample gets another mask.
- **BatchNorm** in training uses the mean and variance of the micro-batch, whose size depends on the world size; padding
  samples count too. SyncBatchNorm covers a whole step only if `max_per_rank` does not split it. GroupNorm and LayerNorm
  normalize each sample separately: nothing changes.
- A loss that is not a mean over samples (a sum, or a mean over tokens): `scale_loss` counts samples.
- Gradient clipping stays the same if you clip the summed gradient, when `is_last_micro_batch` is true.
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
"""The factor of the learning rate when the global batch is `times` as large as `lr_base`.

linear: Goyal et al. 2017, for SGD. sqrt: Krizhevsky 2014, the usual choice for Adam (Malladi et al. 2022).
"""

GROUP_RATES: Final = ("lr", "initial_lr", "max_lr", "min_lr")
"""The learning rates in an optimizer's groups: its own, the schedulers' base, and those of OneCycleLR."""


class BatchSource(Protocol):
    """The source of the batches: an `ElasticSampler` or an `ElasticStream`."""

    @property
    def world(self) -> int:
        """The number of ranks."""

    @property
    def weight(self) -> float:
        """The weight of the current batch in its step."""

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the current batch completes its step."""


class GlobalBatch:
    """The batch size at any world size. Pass it to a sampler or stream: `ElasticSampler(..., batch=batch)`.

    Either each step has `total` samples over all ranks, at any world size; or each rank has `per_rank` samples, so that
    the global batch grows with the world size, and the learning rate with it.

    Args:
        total: The number of samples of one step over all ranks. Shares of the ranks differ by at most one sample.
        max_per_rank: With `total`: the largest number of samples that fits on a rank at once. A larger share is split
            into micro-batches of about equal size, the same number on all ranks.
        per_rank: The number of samples of one step on each rank.
        lr: With `per_rank`: the scaling rule of the learning rate: "linear" (Goyal et al. 2017), "sqrt" (Krizhevsky
            2014) or "none".
        lr_base: The global batch size, in samples, for which the learning rate of the script was chosen.
        drop_last: Drop the incomplete last step of an epoch.

    Raises:
        ConfigError: A value is wrong, or the values contradict each other.
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
            raise ConfigError(f'with total the global batch never changes, so lr="{lr}" has no effect; leave it out')
        if lr != "none" and lr_base is None:
            raise ConfigError(f'lr="{lr}" needs lr_base: the global batch size for which the learning rate was chosen')
        if lr_base is not None and (not isinstance(lr_base, int) or lr_base < 1):
            raise ConfigError(f"lr_base is {lr_base!r}; write a number of samples, 1 or more")
        self.lr = lr
        self.lr_base = lr_base
        self._applied = 1.0
        self._source: weakref.ref[BatchSource] | None = None

    def bind(self, source: BatchSource) -> None:
        """Take the weights from `source`. `ElasticSampler` and `ElasticStream` call it.

        Args:
            source: The sampler or stream.

        Raises:
            ConfigError: This batch belongs to another sampler or stream.
        """
        if self._found() not in (None, source):
            raise ConfigError("this GlobalBatch belongs to another sampler; create one for each sampler")
        self._source = weakref.ref(source)

    @property
    def world(self) -> int:
        """The number of ranks that share a step."""
        source = self._found()
        return source.world if source is not None else rank_and_world()[1]

    @property
    def size(self) -> int:
        """The `batch_size` for the loader of a rank at the current world size: that of the largest micro-batch."""
        return self.rule.size(self.world)

    @property
    def total(self) -> int:
        """The number of samples of one step over all ranks, at the current world size."""
        return self.rule.step(self.world)

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the current batch completes its step: if so, call `optimizer.step()`."""
        return self._bound().is_last_micro_batch

    @property
    def last(self) -> bool:
        """Deprecated: use `is_last_micro_batch`."""
        renamed("GlobalBatch.last", "GlobalBatch.is_last_micro_batch")
        return self.is_last_micro_batch

    @property
    def weight(self) -> float:
        """The weight of the mean loss of the current batch: 1.0 if all shares are equal, 0.0 for padding."""
        return self._bound().weight

    def scale_loss(self, loss: LossT) -> LossT:
        """Weight the loss of the current batch, so that the gradients of unequal batches add up to that of the step.

        DDP and FSDP average the gradients over the ranks. Summed over the micro-batches of the step, the result is the
        gradient of the mean over all samples of the step.

        Args:
            loss: The mean loss over the samples of the batch: a number or a tensor of any shape. The loss of a padding
                sample has weight 0, but must be finite: 0 times infinity is NaN.

        Returns:
            `loss * weight`, with `weight = samples of the batch * ranks / samples of the step`.

        Raises:
            ConfigError: The `GlobalBatch` has no sampler, or no batch has been taken yet.
        """
        return cast("LossT", cast("Any", loss) * self._bound().weight)

    def weigh(self, loss: LossT) -> LossT:
        """Deprecated: use `scale_loss`."""
        renamed("GlobalBatch.weigh", "GlobalBatch.scale_loss")
        return self.scale_loss(loss)

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Return a context manager for the forward and backward pass of a micro-batch.

        In it, DDP and FSDP exchange gradients only with the last micro-batch of a step. It uses `no_sync` of DDP and
        FSDP1, and `set_requires_gradient_sync` of FSDP2; it does not change other models. With FSDP2 each rank then
        holds the unsharded gradients until the end of the step; if they do not fit into memory, do not use it: the
        result is the same.

        Args:
            *models: The models whose gradients are accumulated.

        Raises:
            ConfigError: The `GlobalBatch` has no sampler, or no batch has been taken yet.
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
        """The factor of the learning rate at the current world size."""
        return LR_RULES[self.lr](self.total / self.lr_base) if self.lr_base else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Return the factor that is applied to the learning rates. Save it with the optimizer and scheduler."""
        return {"factor": self._applied}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the factor of the learning rates that were saved with it; `apply` then adjusts them.

        Args:
            state: The result of `state_dict`.
        """
        self._applied = float(state["factor"])

    def apply(self, optimizers: Iterable[Any], schedulers: Iterable[Any] = ()) -> float:
        """Scale the learning rates to the current world size.

        Call it after the optimizers and schedulers are created, on a fresh start; or after they and this object have
        loaded their states. A second call changes nothing. It changes `lr`, `initial_lr`, `max_lr` and `min_lr` of each
        parameter group, and `base_lrs` and `max_lrs` of each scheduler, including those within a SequentialLR or
        ChainedScheduler. It does not change `eta_min` and `min_lrs`.

        Args:
            optimizers: The optimizers.
            schedulers: Their schedulers.

        Returns:
            The ratio by which the learning rates were multiplied.
        """
        ratio = self.factor / self._applied
        if ratio != 1.0:
            # Groups and schedulers may share a tensor, so all rates are computed before one changes.
            seen: set[int] = set()
            for scheduler in schedulers:
                _scale_scheduler(scheduler, ratio, seen)
            groups = [group for optimizer in optimizers for group in optimizer.param_groups]
            for group, rates in [(group, _scaled(group, ratio)) for group in groups]:
                _set_rates(group, rates)
            self._applied = self.factor
        return ratio

    def _found(self) -> BatchSource | None:
        return self._source() if self._source is not None else None

    def _bound(self) -> BatchSource:
        if (source := self._found()) is None:
            raise ConfigError("this GlobalBatch has no sampler; write ElasticSampler(dataset, batch=batch)")
        return source


def batch(total: int | None = None, most: int | None = None, **others: Any) -> GlobalBatch:
    """Deprecated: use `GlobalBatch(total, max_per_rank)`."""
    renamed("elastic.batch(total, most)", "elastic.GlobalBatch(total, max_per_rank)")
    return GlobalBatch(total, most, **others)


def renamed(old: str, new: str) -> None:
    """Warn the caller of the caller that a name has changed, and that the old one is removed in 0.2."""
    warnings.warn(f"{old} is now {new}; the old name is removed in 0.2", DeprecationWarning, stacklevel=3)


def _scaled(group: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    return {name: group[name] * ratio for name in GROUP_RATES if name in group}


def _set_rates(group: dict[str, Any], rates: Mapping[str, Any]) -> None:
    for name, value in rates.items():
        if hasattr(group[name], "copy_"):  # Keep the tensor: a compiled step may refer to it.
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
