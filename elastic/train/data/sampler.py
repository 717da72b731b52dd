"""`elastic.ElasticSampler`: the data order of a dataset, exact when the world size changes.

    sampler = elastic.ElasticSampler(dataset, shuffle=True, seed=0)
    loader = elastic.DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=4)

Committed steps use each sample of an epoch once, however the world size changes in between. Samples that a DataLoader
has prefetched but the loop has not taken, and those that the loop took after the last commit, are served again.
`elastic.train.data.batch_plan` describes how the ranks share the samples.

**The order.** With `shuffle` it is `torch.randperm(length, generator=g)`, where g is a `torch.Generator()` on the CPU
seeded with `g.manual_seed(seed_of(seed, epoch))`, with `seed_of` from `elastic.train.data.permutation`; without it, 0,
1, 2 … With `order=` it is the result of `order(epoch)`: a sequence of indices (a list, an array or a tensor; weighted,
repeated or a subset), which must be the same at each call with the same epoch on every rank. Seed any random numbers
that it uses:

    def order(epoch):
        generator = torch.Generator().manual_seed(epoch)
        return torch.multinomial(weights, len(weights), replacement=True, generator=generator)

The order is built once per epoch and rank: 8 bytes per sample.

**Consumed samples.** A batch counts as consumed when the loop receives it. A commit calls `state_dict` after the step
that used the batch; a step counts only once all its micro-batches are taken. If a loop is left early, the next one
continues after the last commit. Without a commit nothing counts, so a loop may inspect the first batch, and a sampler
for validation, which is not in the State, serves every sample each time.

**Length buckets** and similar schemes belong in `order=`: code that sorts batches after the sampler changes which
samples a step has, and a change of the world size would then lose some. A custom batch sampler reads whole batches from
`BatchSampler(sampler, batch_size, False)` and passes them on in order; the loop calls `advance` for each.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Any

from torch.utils.data import Sampler

from elastic.errors import ConfigError
from elastic.train.data.batch import GlobalBatch
from elastic.train.data.batch_plan import BatchPlan
from elastic.train.data.epoch_position import EpochPosition, LoaderInfo, SamplerIteration, rule_for
from elastic.train.data.loader_probe import inspect_loader, report_probe
from elastic.train.data.permutation import Permutation
from elastic.train.process_group.topology import rank_and_world


class ElasticSampler(EpochPosition[SamplerIteration], Sampler[Any]):
    """The data order of a dataset, and this rank's share of it, exact when the world size changes.

    ::

        sampler = elastic.ElasticSampler(dataset, shuffle=True, seed=0)
        loader = elastic.DataLoader(dataset, batch_size=64, sampler=sampler)
        state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)

    Committed steps use each sample of an epoch once. If fewer samples than ranks remain, a rank without a sample gets a
    batch with one padding sample, so that the ranks run the same collectives: `samples` is 0 then, and `weight` and
    `GlobalBatch.scale_loss` give it weight 0. All ranks must pass the same arguments.

    A training loop may need `samples`, `weight` and `is_last_micro_batch`, and `advance` if something prefetches
    batches for it. The other methods are for `State`, `epochs` and `DataLoader`.

    Args:
        dataset_or_length: The dataset, or its number of samples.
        shuffle: Shuffle each epoch by `seed` and the number of the epoch; otherwise use the order of the dataset.
        seed: A whole number, the same on all ranks.
        batch: A `GlobalBatch`; without one each rank takes the `batch_size` of its loader in every step.
        order: `order(epoch)` returns the indices of an epoch in order, the same on all ranks and at each call.
        rank: With `world`: the index of this process among those that get different data, if it is not the rank in the
            process group (tensor parallelism).
        world: The number of processes that get different data. By default rank and world are those of the process
            group when a loop starts.

    Raises:
        ConfigError: An argument is wrong. In a loop: the loader cannot be served exactly.
    """

    def __init__(
        self,
        dataset_or_length: Sized | int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        batch: GlobalBatch | None = None,
        order: Callable[[int], Sequence[Any]] | None = None,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        super().__init__(batch, rank, world)
        self.shuffle = shuffle if order is None else False
        self.seed = _seed(seed)
        self._order = Permutation(_length(dataset_or_length), self.seed if self.shuffle else None, order)
        self._batch_size: int | None = None

    @property
    def length(self) -> int:
        """The number of samples of this epoch, over all ranks."""
        return self._order.length(self._epoch)

    @property
    def finished(self) -> bool:
        """Whether all samples of this epoch are consumed."""
        return self.consumed >= self.length

    def steps_left(self, epochs: int) -> int | None:
        """Return the number of remaining steps at the current world size.

        Args:
            epochs: The number of epochs of the whole training.

        Returns:
            The number of steps; None before the first batch.
        """
        if (loop := self._loop) is None:
            return None
        plan = loop.plan
        try:
            left = plan.steps - plan.steps_in(loop.taken)
        except ConfigError:  # The number of taken batches is unknown.
            return None
        further = max(epochs - self._epoch - 1, 0)
        return left + further * BatchPlan(plan.length, 0, plan.world, plan.rule).steps

    def at_next_loop(self, call: Callable[[], None]) -> None:
        """Call `call` once when the next loop of this epoch starts, after its DataLoader has drawn its seed."""
        self._begun = call

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data after the batches taken so far, the same on all ranks.

        Raises:
            ConfigError: The number of batches that the loop has taken is unknown.
        """
        self.keep()
        consumed = self.consumed
        return {
            "epoch": self._epoch,
            "consumed": consumed,
            "seed": self.seed,
            "length": self.length,
            "shuffle": self.shuffle,
            "order": self._order.mark(self._epoch) if consumed else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a position, at any world size.

        Args:
            state: The result of `state_dict`.

        Raises:
            ConfigError: The position belongs to another data order.
        """
        epoch, consumed = int(state["epoch"]), int(state["consumed"])
        length = self._order.length(epoch)
        current = {"length": length, "seed": self.seed, "shuffle": self.shuffle}
        hints = {
            "length": "use the same dataset, or leave the sampler out of the state to start at epoch 0",
            "seed": f"write ElasticSampler(..., seed={state['seed']})",
            "shuffle": f"write ElasticSampler(..., shuffle={state['shuffle']})",
        }
        for name, hint in hints.items():
            if state[name] != current[name]:
                raise ConfigError(
                    f"ElasticSampler: the checkpoint was made with {name} {state[name]}, but this run has "
                    f"{current[name]}, which changes the data order; {hint}"
                )
        if not 0 <= consumed <= length:
            raise ConfigError(f"ElasticSampler: the checkpoint has {consumed} of {length} samples consumed")
        if 0 < consumed < length and state.get("order") not in (None, self._order.mark(epoch)):
            raise ConfigError(
                f"ElasticSampler: the order of epoch {epoch} differs from that of the checkpoint; order= must "
                "return the same for the same epoch in every process (seed it with the epoch), and the version of "
                "torch must be the same"
            )
        self._epoch = self._restored = epoch
        self._base, self._loop = consumed, None

    # For loaders.

    def batches(self, loader: LoaderInfo) -> Iterator[list[Any]]:
        """Yield the indices of each batch of this rank, in an iteration that starts with the first batch.

        Raises `ConfigError` if the loader cannot be served exactly.
        """
        loop = self._begin(loader)
        while loop.cut < loop.plan.batches:
            if loop is not self._loop:
                raise ConfigError(
                    "ElasticSampler: another loop was started, or the position was changed, during this loop; leave "
                    "the loop first, and use one sampler for each DataLoader"
                )
            yield self._order.take(self._epoch, loop.next_cut().positions)

    def plan(self, loader: LoaderInfo) -> BatchPlan:
        """Return the plan of the running iteration, else that of the next one."""
        return self._loop.plan if self._loop is not None else self._planned(loader).plan

    def __iter__(self) -> Iterator[Any]:
        return _Indices(self)

    def __len__(self) -> int:
        """Return the number of remaining indices of this rank, as `len(torch.utils.data.BatchSampler)` needs it."""
        loader = inspect_loader(self)
        plan = self.plan(loader)
        if loader.batch_size is not None:
            return plan.batches * loader.batch_size
        return plan.taken_by(rank_and_world(*self._place)[0])

    def _begin(self, loader: LoaderInfo) -> SamplerIteration:
        if loader.problem:
            raise ConfigError(f"ElasticSampler: {loader.problem}")
        if (before := self._loop) is not None and before.kept:
            self._base = before.committed
            if self._base >= self.length:
                raise ConfigError(
                    f"ElasticSampler: all of epoch {self._epoch} has been served; call "
                    f"sampler.set_epoch({self._epoch + 1}) before the next loop, or loop over elastic.epochs(state, "
                    "n); leave a sampler for validation out of the elastic.State, to serve all samples each time"
                )
        if loader.batch_size is not None:
            self._batch_size = loader.batch_size
        self._loop = self._planned(loader)
        begun, self._begun = self._begun, None
        if begun is not None:
            begun()
        return self._loop

    def _planned(self, loader: LoaderInfo) -> SamplerIteration:
        rank, world = rank_and_world(*self._place)
        plan = BatchPlan(self.length, self._base, world, rule_for(self.batch, loader, world, self._batch_size))
        return SamplerIteration(plan, rank, loader.count, by_hand=self._by_hand)


def _length(given: Sized | int) -> int:
    if hasattr(given, "__len__"):
        return len(given)
    if hasattr(given, "__index__"):  # NumPy's integers too.
        return operator.index(given)
    raise ConfigError(
        f"ElasticSampler: {type(given).__name__} has no length; for data that can only be read in sequence, use "
        "elastic.ElasticStream"
    )


def _seed(given: int) -> int:
    if not hasattr(given, "__index__"):
        raise ConfigError(f"ElasticSampler(seed={given!r}): write a whole number, the same on all ranks")
    return operator.index(given)


class _Indices:
    """The indices of this rank, one by one, for a loader of another library.

    Torch's BatchSampler makes a batch of the indices before a StopIteration, and then requests the next one. So this
    raises one after each batch that is smaller than the loader's batch size, except with drop_last, which has no such
    batches.
    """

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler = sampler
        self._batches: Iterator[list[Any]] | None = None
        self._now: list[Any] = []
        self._at = 0
        self._full = 0
        self._short = False

    def __iter__(self) -> _Indices:
        return self

    def __next__(self) -> Any:
        if self._at == len(self._now):
            self._next_batch()
        self._at += 1
        return self._now[self._at - 1]

    def _next_batch(self) -> None:
        if self._short:
            self._short = False
            raise StopIteration
        if self._batches is None:
            loader = inspect_loader(self._sampler)
            if loader.count is not None:
                report_probe()
            self._full = 0 if loader.drop_last else loader.batch_size or 0
            self._batches = self._sampler.batches(loader)
        self._now, self._at = next(self._batches), 0
        self._short = len(self._now) < self._full
