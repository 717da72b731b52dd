"""`elastic.ElasticStream`: data that can only be read in sequence, exact when the world size changes.

    stream = elastic.ElasticStream(lambda epoch: open_lines(epoch), batch_size=64)
    state = elastic.State(model=model, optimizer=optimizer, stream=stream)
    for epoch in elastic.epochs(state, 3):
        for batch in stream:
            ...
            state.commit(every=50)

The samples of an epoch are split into steps and shared among the ranks as `elastic.train.data.batch_plan` describes,
without knowing their number: one step is read ahead. Every rank, and each DataLoader worker, reads the whole stream and
keeps its share. So stream names, lines or offsets, and do the work in `collate_fn`, which gets only the samples of its
rank. After a restart, consumed samples are read again and dropped, or skipped at once if the stream has a method
`skip(n)` that returns the rest.

The stream must return the same samples in the same order each time, on every rank and in every DataLoader worker. It
must not split itself among the ranks: `ElasticStream` does that. A dataset that splits itself among DataLoader workers
needs no change: within it, `get_worker_info()` returns None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import get_ident
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from elastic._text import joined
from elastic.errors import ConfigError
from elastic.train.data.batch import GlobalBatch
from elastic.train.data.batch_plan import BatchRule, MicroBatch, micro_batches, steps_of
from elastic.train.data.epoch_position import EpochPosition, check_thread
from elastic.train.process_group.topology import rank_and_world
from elastic.train.torch_internals import without_worker_info

OURS: Final = ("sampler", "batch_sampler", "shuffle", "in_order")
"""Options of a DataLoader that a stream sets itself."""

AHEAD_MAX: Final = 1000
"""The number of batches that may be taken before the first `advance`: more than any prefetcher takes."""


class TakenBatch(NamedTuple):
    """The note with each batch: its number, the position after its step, and whether it is the last of the epoch."""

    micro: MicroBatch
    consumed: int
    final: bool


class ElasticStream(EpochPosition["_StreamLoop"]):
    """This rank's batches of data that can only be read in sequence, exact when the world size changes.

    A batch counts as consumed when the loop receives it; prefetched batches do not count. If a loop is left early, the
    next one continues after the last commit, or at the start of the loop if there was none.

    Args:
        make: `make(epoch)` returns the samples of an epoch: an iterable or an iterator, the same on all ranks and at
            each call. Or an iterable dataset that is the same in each epoch or has `set_epoch`.
        batch_size: The number of samples in a batch of this rank. Pass either this or `batch`.
        batch: A `GlobalBatch`.
        num_workers: The number of processes that build batches. Each of them reads the whole stream.
        collate_fn: Makes a batch from a list of samples; torch's `default_collate` by default.
        drop_last: Drop the incomplete last step of an epoch, counted over all ranks.
        rank: As in `ElasticSampler`.
        world: As in `ElasticSampler`.
        **loader_options: Other options of torch's DataLoader, such as pin_memory, prefetch_factor and
            persistent_workers.

    Raises:
        ConfigError: An argument is wrong, or the arguments contradict each other. In a loop: the stream has fewer
            samples than were consumed.
    """

    def __init__(
        self,
        make: Callable[[int], Iterable[Any]] | Iterable[Any],
        *,
        batch_size: int | None = None,
        batch: GlobalBatch | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **loader_options: Any,
    ) -> None:
        if (batch is None) == (batch_size is None):
            raise ConfigError("ElasticStream needs either batch_size= or batch=; give one of them")
        if theirs := [name for name in OURS if name in loader_options]:
            raise ConfigError(f"ElasticStream sets {joined(theirs)} itself; leave it out")
        if isinstance(make, Iterator) and not callable(make):
            raise ConfigError(
                f"ElasticStream: a {type(make).__name__} can be read only once, but an epoch may be read again; pass a "
                "function that creates it: ElasticStream(lambda epoch: ...)"
            )
        super().__init__(batch, rank, world)
        rule = batch.rule if batch is not None else BatchRule(per_rank=batch_size)
        self._rule = BatchRule(rule.per_rank, rule.total, rule.max_per_rank, rule.drop_last or drop_last)
        self._served = StreamDataset(make, self._rule, collate_fn or default_collate, shared=num_workers > 0)
        self._options = {"num_workers": num_workers, **loader_options}
        self._loader: DataLoader[Any] | None = None
        self._ended = False

    @property
    def finished(self) -> bool:
        """Whether all samples of this epoch are known to be consumed."""
        return self._ended if self._loop is None else self._loop.place.ended

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch; does nothing if it is the current one.

        Args:
            epoch: The number of the epoch, from 0.
        """
        self._ended = self._ended and epoch == self._epoch
        super().set_epoch(epoch)

    def at_next_loop(self, call: Callable[[], None]) -> None:
        """Call `call` once when the next loop of this epoch starts, after its DataLoader has drawn its seed."""
        self._begun = None if self.finished else call  # A finished epoch draws no seed.

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data after the batches taken so far, the same on all ranks."""
        self.keep()
        return {"epoch": self._epoch, "consumed": self.consumed, "finished": self.finished}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a position, at any world size.

        Args:
            state: The result of `state_dict`.
        """
        self._epoch = self._restored = int(state["epoch"])
        self._base = int(state["consumed"])
        self._ended, self._loop = bool(state["finished"]), None

    def __iter__(self) -> Iterator[Any]:
        if (before := self._loop) is not None and before.kept is not None:
            self._base, self._ended = before.kept
            if self._ended:
                raise ConfigError(
                    f"ElasticStream: all of epoch {self._epoch} has been served; call "
                    f"stream.set_epoch({self._epoch + 1}) before the next loop, or loop over elastic.epochs(state, "
                    "n); leave a stream for validation out of the elastic.State, to serve all samples each time"
                )
        rank, world = rank_and_world(*self._place)
        loop = self._loop = _StreamLoop(StreamPosition(self._base, self._ended), world, by_hand=self._by_hand)
        if self._ended:
            return
        self._served.aim(self._epoch, self._base, rank, world)
        if self._loader is None:
            self._loader = DataLoader(self._served, batch_size=None, collate_fn=_as_it_is, **self._options)
        batches = iter(self._loader)
        begun, self._begun = self._begun, None
        if begun is not None:
            begun()
        for batch, note in batches:
            if self._loop is not loop:
                raise ConfigError(
                    "ElasticStream: another loop was started, or the position was changed, during this loop; leave the "
                    "loop first"
                )
            loop.take(note)
            yield batch
        loop.end()


class StreamPosition(NamedTuple):
    """A position in an epoch, and whether it is the end."""

    consumed: int
    ended: bool


class _StreamLoop:
    """One loop over a stream, and its position."""

    def __init__(self, start: StreamPosition, world: int, *, by_hand: bool) -> None:
        self.world = world
        self.current: MicroBatch | None = None
        self.kept: StreamPosition | None = None
        """The position of the last commit in this loop."""
        self.place = self._start = start
        self._by_hand = by_hand
        self._ahead: deque[TakenBatch] | None = deque()
        """Batches taken, but not yet counted by `advance`; None once it is clear that `advance` is not used."""
        self._thread = 0

    @property
    def consumed(self) -> int:
        return self.place.consumed

    def take(self, note: TakenBatch) -> None:
        """Record that the loop, or a prefetcher, takes a batch."""
        self._thread = get_ident()
        if self._ahead is not None:
            self._ahead.append(note)
        if not self._by_hand:
            self._count(note)
            if self._ahead and len(self._ahead) > AHEAD_MAX:
                self._ahead = None

    def end(self) -> None:
        """Record the end of the stream."""
        if not (self._by_hand and self._ahead):
            self.place = self.place._replace(ended=True)

    def advance(self, batches: int) -> None:
        """Count `batches` more; from now on only this counts."""
        if not self._by_hand:
            self._by_hand, self.place, self.current = True, self._start, None
        for _ in range(batches):
            if not self._ahead:
                raise ConfigError(
                    "ElasticStream: advance() was called for a batch that was not taken, or not for the first batches; "
                    "call it once for each batch that the loop receives, from the first one on"
                )
            self._count(self._ahead.popleft())

    def keep(self) -> None:
        """Record that the batches taken so far are committed. Raises `ConfigError` if another thread takes them."""
        if not self._by_hand:
            check_thread("ElasticStream", self._thread)
            self._ahead = None
        if self.current is not None:
            self.kept = self.place

    def _count(self, note: TakenBatch) -> None:
        self.current = note.micro
        if note.micro.last:
            self.place = StreamPosition(note.consumed, note.final)


def _as_it_is(made: Any) -> Any:
    """Return the batch unchanged: the default of a DataLoader would convert NumPy arrays to tensors."""
    return made


class StreamDataset(IterableDataset[Any]):
    """The batches that a rank, or one of its DataLoader workers, makes from a stream, each with its note."""

    def __init__(self, make: Any, rule: BatchRule, collate: Callable[[list[Any]], Any], *, shared: bool) -> None:
        """`shared`: worker processes, which may outlive a loop (persistent_workers), read the aim."""
        self._make = make
        self._rule = rule
        self._collate = collate
        self._aim = torch.zeros(4, dtype=torch.int64, device="cpu")
        if shared:
            self._aim.share_memory_()  # type: ignore[no-untyped-call]  # Torch has no type for it.

    def aim(self, epoch: int, consumed: int, rank: int, world: int) -> None:
        """Set what the next loop serves."""
        self._aim.copy_(torch.tensor([epoch, consumed, rank, world], device="cpu"))

    def __iter__(self) -> Iterator[tuple[Any, TakenBatch]]:
        epoch, consumed, rank, world = self._aim.tolist()
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        number, before = 0, consumed
        samples = without_worker_info(lambda: self._rest(epoch, before))
        for step, final in steps_of(samples, self._rule, world):
            consumed += len(step)
            for micro in micro_batches(0, len(step), self._rule, rank, world):
                if number % workers == worker:
                    batch = self._collate([step[at] for at in micro.positions])
                    yield batch, TakenBatch(micro, consumed, micro.last and final)
                number += 1

    def _rest(self, epoch: int, consumed: int) -> Iterator[Any]:
        """Yield the samples of an epoch after the consumed ones."""
        if callable(self._make) and not isinstance(self._make, IterableDataset):
            source = self._make(epoch)
        else:
            source = self._make
            if hasattr(source, "set_epoch"):
                source.set_epoch(epoch)
        if consumed and hasattr(source, "skip"):
            yield from source.skip(consumed)
            return
        samples = iter(source)
        for over in range(consumed):
            try:
                next(samples)
            except StopIteration:
                raise ConfigError(
                    f"ElasticStream: epoch {epoch} has {over} samples, but {consumed} are consumed; the stream must be "
                    "the same each time"
                ) from None
        yield from samples
