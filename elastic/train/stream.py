"""Data that can only be read from front to back, exact over world changes: `elastic.ElasticStream`.

    stream = elastic.ElasticStream(lambda epoch: open_lines(epoch), batch_size=64)
    state = elastic.State(model=model, optimizer=optimizer, stream=stream)
    for epoch in elastic.epochs(state, 3):
        for batch in stream:
            ...
            state.commit(every=50)

The samples of an epoch are cut into steps and shared among the ranks as `elastic.train.order` says, without knowing
how many there are: one step is read ahead. Every rank reads the whole stream and keeps its share, and so does each
DataLoader worker; the stream is best one of names, lines or offsets, and the work is best done in `collate_fn`, which
sees only what is kept. What is consumed is read over after a world change, or skipped at once if the stream has a
method `skip(n)` that returns the rest.

The stream must give the same samples in the same order each time, on every rank and in every DataLoader worker. It must
not share itself among the ranks: that is done here. A dataset that shares itself among DataLoader workers may stay as
it is: within it, `get_worker_info()` says that there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from elastic.errors import ConfigError
from elastic.train.alone import alone
from elastic.train.batch import Batch
from elastic.train.order import Rule, micro_batches, steps_of
from elastic.train.ranks import rank_and_world

OURS: Final = ("sampler", "batch_sampler", "shuffle", "in_order")
"""Options of a DataLoader that a stream decides itself."""


class Note(NamedTuple):
    """What goes with each batch: its samples, those of its step, the place after it, and whether a step is complete.

    `final`: nothing of the epoch is left after it.
    """

    size: int
    of: int
    consumed: int
    last: bool
    final: bool


class ElasticStream:
    """An iterable of this rank's batches.

    `make(epoch)` returns the samples of an epoch: an iterable or an iterator. An iterable dataset will do too, if it is
    the same in each epoch or has `set_epoch`. `batch_size` is what each rank takes in a step; or give an
    `elastic.batch`. `collate_fn` makes a batch of a list of samples (torch's `default_collate`). With `num_workers`
    each worker builds every n-th batch. `drop_last` leaves out the samples that make no whole step. `rank` and `world`
    as in `ElasticSampler`. What else is given goes to the DataLoader: pin_memory, prefetch_factor, persistent_workers …

    A batch counts as consumed when the loop has it; what the DataLoader has fetched ahead does not. A loop that was
    left goes on where it was left if a commit happened in it, and else begins where it began.
    """

    def __init__(
        self,
        make: Callable[[int], Iterable[Any]] | Iterable[Any],
        *,
        batch_size: int | None = None,
        batch: Batch | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **loader_options: Any,
    ) -> None:
        """Nothing is consumed; epoch 0. Raises `ConfigError` for what does not fit together."""
        if (batch is None) == (batch_size is None):
            raise ConfigError("ElasticStream needs either batch_size= or batch=; give one of them")
        if theirs := [name for name in OURS if name in loader_options]:
            raise ConfigError(f"ElasticStream decides {' and '.join(theirs)} itself; leave it out")
        rule = batch.rule if batch is not None else Rule(per_rank=batch_size)
        self._rule = Rule(rule.per_rank, rule.total, rule.most, rule.drop_last or drop_last)
        self._place = (rank, world)
        rank_and_world(rank, world)
        self.batch = batch
        self._served = Served(make, self._rule, collate_fn or default_collate, shared=num_workers > 0)
        self._options = {"num_workers": num_workers, **loader_options}
        self._loader: DataLoader[Any] | None = None
        self._epoch = 0
        self._base = 0
        self._ended = False
        self._loop: _Loop | None = None
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

    @property
    def finished(self) -> bool:
        """Whether it is known that nothing of this epoch is left."""
        return self._ended if self._loop is None else self._loop.ended

    def set_epoch(self, epoch: int) -> None:
        """Start an epoch. The epoch that it is in already goes on where it is."""
        if epoch != self._epoch:
            self._epoch, self._base, self._ended, self._loop = epoch, 0, False, None
            self._begun = None

    def at_next_loop(self, call: Callable[[], None]) -> None:
        """Call this once when the next loop of this epoch begins, after its DataLoader has drawn its random seed."""
        self._begun = None if self.finished else call  # A finished epoch draws no seed.

    def keep(self) -> None:
        """Say that the batches taken so far are committed, without asking for the state. `state_dict` does it too."""
        if self._loop is not None:
            self._loop.kept = self._loop.kept or self._loop.note is not None

    def state_dict(self) -> dict[str, Any]:
        """The place in the data as of the batches that the loop has taken now. It is the same on all ranks."""
        self.keep()
        return {"epoch": self._epoch, "consumed": self.consumed, "finished": self.finished}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a place, in any world."""
        self._epoch, self._base = int(state["epoch"]), int(state["consumed"])
        self._ended, self._loop = bool(state["finished"]), None

    @property
    def world(self) -> int:
        """The ranks that share the data: those of this loop, or those that there are now."""
        return self._loop.world if self._loop is not None else rank_and_world(*self._place)[1]

    @property
    def weight(self) -> float:
        """What the mean loss of the batch just taken counts in its step; 1.0 where all shares are equal."""
        note = self._taken()
        return note.size * self.world / note.of

    @property
    def samples(self) -> int:
        """Samples in the batch just taken by this rank; 0 if it is padding."""
        return self._taken().size

    @property
    def last(self) -> bool:
        """Whether the batch just taken completes this rank's share of its step."""
        return self._taken().last

    def _taken(self) -> Note:
        if self._loop is None or self._loop.note is None:
            raise ConfigError("ElasticStream: no batch has been taken yet; ask within the loop over it")
        return self._loop.note

    def __iter__(self) -> Iterator[Any]:
        if (before := self._loop) is not None and before.kept:
            self._base, self._ended = before.consumed, before.ended
            if self._ended:
                raise ConfigError(
                    f"ElasticStream: all of epoch {self._epoch} has been served; call "
                    f"stream.set_epoch({self._epoch + 1}) before the next loop, or loop over elastic.epochs(state, n)"
                )
        rank, world = rank_and_world(*self._place)
        loop = self._loop = _Loop(self._base, world, self._ended)
        if loop.ended:
            return
        self._served.aim(self._epoch, self._base, rank, world)
        if self._loader is None:
            self._loader = DataLoader(self._served, batch_size=None, **self._options)
        batches = iter(self._loader)
        begun, self._begun = self._begun, None
        if begun is not None:
            begun()
        for batch, note in batches:
            if self._loop is not loop:
                raise ConfigError(
                    "ElasticStream: it was moved, or another loop over it was started, while this loop was running; "
                    "leave the loop first"
                )
            loop.take(Note(*note))
            yield batch
        loop.ended = True


class _Loop:
    """One loop over a stream: how far it is."""

    def __init__(self, consumed: int, world: int, ended: bool) -> None:
        self.consumed = consumed
        self.world = world
        self.ended = ended
        self.kept = False
        self.note: Note | None = None

    def take(self, note: Note) -> None:
        """The loop takes a batch."""
        self.note = note
        if note.last:
            self.consumed, self.ended = note.consumed, note.final


class Served(IterableDataset[Any]):
    """What one rank, or one of its DataLoader workers, makes of a stream: batches, each with its note."""

    def __init__(self, make: Any, rule: Rule, collate: Callable[[list[Any]], Any], *, shared: bool) -> None:
        """`shared`: the aim is read in other processes, which may outlive a loop (persistent_workers)."""
        self._make = make
        self._rule = rule
        self._collate = collate
        self._aim = torch.zeros(4, dtype=torch.int64, device="cpu")
        if shared:
            self._aim.share_memory_()  # type: ignore[no-untyped-call]  # Torch has not typed it.

    def aim(self, epoch: int, consumed: int, rank: int, world: int) -> None:
        """Say what the next loop is to serve."""
        self._aim.copy_(torch.tensor([epoch, consumed, rank, world], device="cpu"))

    def __iter__(self) -> Iterator[tuple[Any, tuple[int, int, int, bool, bool]]]:
        epoch, consumed, rank, world = self._aim.tolist()
        info = get_worker_info()
        mine, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        number, before = 0, consumed
        samples = alone(lambda: self._rest(epoch, before))
        for step, final in steps_of(samples, self._rule, world):
            consumed += len(step)
            for micro in micro_batches(0, len(step), self._rule, rank, world):
                if number % workers == mine:
                    batch = self._collate([step[at] for at in micro.positions])
                    yield batch, (micro.size, micro.of, consumed, micro.last, micro.last and final)
                number += 1

    def _rest(self, epoch: int, consumed: int) -> Iterator[Any]:
        """The samples of an epoch after those that are consumed."""
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
                    f"ElasticStream: epoch {epoch} has {over} samples, and {consumed} of it are consumed; it must be "
                    "the same stream each time"
                ) from None
        yield from samples
