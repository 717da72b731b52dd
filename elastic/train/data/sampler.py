"""The order of the samples of a dataset, exact over world changes: `elastic.ElasticSampler`.

    sampler = elastic.ElasticSampler(dataset, shuffle=True, seed=0)
    loader = elastic.DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=4)

Each sample of an epoch is used once in committed work, whatever happens to the world in between. What a DataLoader has
fetched but the loop has not taken, and what the loop took after the last commit, is served again. How samples are
shared among the ranks is said in `elastic.train.data.batch_plan`.

**The order.** With `shuffle` it is `torch.randperm(length, generator=g)`, where g is a `torch.Generator()` on the CPU
that got `g.manual_seed(seed_of(seed, epoch))`, with `seed_of` from `elastic.train.data.permutation`; without it, 0, 1,
2 … With `order=` it is what `order(epoch)` returns: a sequence of indices (a list, an array or a tensor; weighted,
repeated or a subset), which must be the same at each call with the same epoch on every rank; so seed what is drawn
there:

    def order(epoch):
        generator = torch.Generator().manual_seed(epoch)
        return torch.multinomial(weights, len(weights), replacement=True, generator=generator)

The order is built once per epoch and rank: 8 bytes a sample.

**What is consumed.** A batch counts from when the loop has it. `state_dict` is called by a commit, after the step that
used the batch; a step whose micro-batches are not all taken does not count. After a loop that was left the next one
goes on behind the last commit. Without a commit it counts for nothing, so that a look at the first batch costs nothing,
and a sampler for validation, which stays out of the State, serves everything each time.

**Length buckets** and the like belong into `order=`: what sorts batches anew behind the sampler changes which samples a
step has, and then a world change in between would lose some. A batch sampler of one's own takes whole batches of
`BatchSampler(sampler, batch_size, False)`, gives them on in their order, and has `advance` called for each.
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
    """The order of a dataset's samples, and this rank's share of it, exact when the world changes.

    ::

        sampler = elastic.ElasticSampler(dataset, shuffle=True, seed=0)
        loader = elastic.DataLoader(dataset, batch_size=64, sampler=sampler)
        state = elastic.State(model=model, optimizer=optimizer, sampler=sampler)

    Each sample of an epoch is used once in committed work. Where fewer samples remain than there are ranks, a rank
    without one gets a batch of one sample of padding, so that collectives match: `samples` is 0 then, and `weight` and
    `GlobalBatch.scale_loss` count it 0. All ranks need the same arguments.

    A training loop may need `samples`, `weight` and `is_last_micro_batch`, and `advance` if something takes batches
    ahead of it. The other methods are for `State`, `epochs` and `DataLoader`.

    Args:
        dataset_or_length: The dataset, or how many samples it has.
        shuffle: Shuffle each epoch, by `seed` and the number of the epoch; otherwise the order is that of the dataset.
        seed: A whole number, the same on all ranks.
        batch: A `GlobalBatch`; without one each rank takes the loader's `batch_size` in every step.
        order: `order(epoch)` returns the indices of an epoch in their order; it must return the same on all ranks and
            at each call.
        rank: With `world`: this process's place among those that get different data, if that is not its rank in the
            process group (tensor parallelism).
        world: The number of such places. Without both they are rank and size of the process group when a loop starts.

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
        """How many samples this epoch has, over all ranks."""
        return self._order.length(self._epoch)

    @property
    def finished(self) -> bool:
        """Whether nothing of this epoch is left."""
        return self.consumed >= self.length

    def steps_left(self, epochs: int) -> int | None:
        """The steps that are left of so many epochs if the world stays as it is; None before the first batch."""
        if (loop := self._loop) is None:
            return None
        plan = loop.plan
        try:
            left = plan.steps - plan.steps_in(loop.taken)
        except ConfigError:  # Nobody can know.
            return None
        further = max(epochs - self._epoch - 1, 0)
        return left + further * BatchPlan(plan.length, 0, plan.world, plan.rule).steps

    def at_next_loop(self, call: Callable[[], None]) -> None:
        """Call this once when the next loop of this epoch begins, after its DataLoader has drawn its random seed."""
        self._begun = call

    def state_dict(self) -> dict[str, Any]:
        """The place in the data as of the batches that the loop has taken now. It is the same on all ranks."""
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
        """Resume from a place, in any world. Raises `ConfigError` if it is a place in another order."""
        epoch, consumed = int(state["epoch"]), int(state["consumed"])
        length = self._order.length(epoch)
        current = {"length": length, "seed": self.seed, "shuffle": self.shuffle}
        hints = {
            "length": "use the dataset that it was made with, or leave the sampler out of the state to start anew",
            "seed": f"write ElasticSampler(..., seed={state['seed']})",
            "shuffle": f"write ElasticSampler(..., shuffle={state['shuffle']})",
        }
        for name, hint in hints.items():
            if state[name] != current[name]:
                raise ConfigError(
                    f"ElasticSampler: the checkpoint was made with {name} {state[name]}, and this run has "
                    f"{current[name]}: the order of the data would be another one; {hint}"
                )
        if not 0 <= consumed <= length:
            raise ConfigError(f"ElasticSampler: the checkpoint says {consumed} of {length} samples are consumed")
        if 0 < consumed < length and state.get("order") not in (None, self._order.mark(epoch)):
            raise ConfigError(
                f"ElasticSampler: the order of epoch {epoch} is not the one that the checkpoint was made with; order= "
                "must return the same for the same epoch in every process (seed it with the epoch), and torch must be "
                "of the same version"
            )
        self._epoch = self._restored = epoch
        self._base, self._loop = consumed, None

    # What loaders call.

    def batches(self, loader: LoaderInfo) -> Iterator[list[Any]]:
        """The indices of each batch of this rank, in one iteration, which begins when the first batch is asked for.

        Raises `ConfigError` if the loader cannot be served exactly.
        """
        loop = self._begin(loader)
        while loop.cut < loop.plan.batches:
            if loop is not self._loop:
                raise ConfigError(
                    "ElasticSampler: the sampler was moved, or another loop over it was started, while this loop was "
                    "running; leave the loop first, and use one sampler for each DataLoader"
                )
            yield self._order.take(self._epoch, loop.next_cut().positions)

    def plan(self, loader: LoaderInfo) -> BatchPlan:
        """What this iteration serves: the one that has begun, else the next one."""
        return self._loop.plan if self._loop is not None else self._planned(loader).plan

    def __iter__(self) -> Iterator[Any]:
        return _Indices(self)

    def __len__(self) -> int:
        """The number of indices that remain for this rank, as `len(torch.utils.data.BatchSampler)` needs it."""
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
                    "n); a sampler for validation stays out of the elastic.State, and then serves everything each time"
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
    if hasattr(given, "__index__"):  # Numpy's integers too.
        return operator.index(given)
    raise ConfigError(
        f"ElasticSampler: {type(given).__name__} has no length; for data that can only be read from front to back, "
        "use elastic.ElasticStream"
    )


def _seed(given: int) -> int:
    if not hasattr(given, "__index__"):
        raise ConfigError(f"ElasticSampler(seed={given!r}): write a whole number, the same on all ranks")
    return operator.index(given)


class _Indices:
    """The indices of this rank for a loader of another library, one by one.

    Torch's BatchSampler makes a batch of what it gets before a StopIteration, and then asks on. So one is raised after
    each batch that is smaller than the loader's, unless with drop_last, which has none.
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
