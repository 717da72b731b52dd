"""What the library uses of torch that is not public, each behind one function or class.

No other module of it touches a private name of torch; a test checks that. Each piece says what it uses, and what
happens with a version of torch that no longer has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, cast

import torch
from torch.utils.data import dataloader, get_worker_info
from torch.utils.data._utils import worker

from elastic.errors import ConfigError

LoaderIterator: Final[type[Any]] = dataloader._BaseDataLoaderIter
"""The class of what `iter(DataLoader)` returns."""


class LoaderLoop:
    """Counts the batches that a loop over torch's DataLoader has taken, also after the loop has ended.

    The DataLoader's iterator is not kept alive: it stops its workers when it is dropped. Only its attributes are, and
    those until it is gone. Used of it: `_num_yielded`, the batches that the loop has taken; `_index_sampler`, where it
    takes indices; `_in_order` (torch 2.7 and later). Without the first two no batch can be counted: `takes_from` is
    False, and the sampler asks for `elastic.DataLoader` or `advance`.
    """

    def __init__(self, iterator: Any) -> None:
        """Follow an iterator of a DataLoader from its start."""
        self._attributes: dict[str, Any] | None = vars(iterator)
        self._taken = 0
        self._alive = weakref.ref(iterator, self._end)

    def takes_from(self, sampler: object) -> bool:
        """Whether the loop takes its indices from `sampler`, and its batches can be counted."""
        attributes = self._attributes or {}
        return attributes.get("_index_sampler") is sampler and "_num_yielded" in attributes

    @property
    def taken(self) -> int:
        """The batches that the loop has been given so far.

        With persistent workers the iterator serves the next loop too, and counts that one then; what was seen before
        stays.
        """
        if self._attributes is not None:
            self._taken = max(self._taken, int(self._attributes["_num_yielded"]))
        return self._taken

    @property
    def in_order(self) -> bool:
        """Whether batches come in the order of the indices, as they do unless DataLoader(in_order=False)."""
        return self._attributes is None or bool(self._attributes.get("_in_order", True))

    def _end(self, _: object) -> None:
        self._taken = self.taken
        self._attributes = None


def without_worker_info(make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The samples of `make()`, read within a DataLoader worker as if there were no other worker.

    Iterable datasets are often written to share themselves among DataLoader workers: they ask `get_worker_info`, which
    returns `_worker_info`. Our stream shares its samples itself, so they get None while they are being read. A torch
    that keeps the answer elsewhere would have them share it twice; a test would fail.
    """
    if (info := get_worker_info()) is None:
        yield from make()
        return
    worker._worker_info = None
    try:
        samples = iter(make())
    finally:
        worker._worker_info = info
    while True:
        worker._worker_info = None
        try:
            sample = next(samples)
        except StopIteration:
            return
        finally:
            worker._worker_info = info
        yield sample


def default_store() -> Any:
    """The store of the process group: torch has no public way to it."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


SCHEDULER_RATES: Final = ("base_lrs", "max_lrs", "_last_lr")
"""Lists of learning rates in a scheduler: CyclicLR has `max_lrs`; `_last_lr` is what `get_last_lr` returns."""


def inner_schedulers(scheduler: Any) -> Iterable[Any]:
    """The schedulers that a SequentialLR or ChainedScheduler is made of; none of any other."""
    return getattr(scheduler, "_schedulers", ())


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors in one call, without waiting for a GPU.

    Uses `torch._foreach_copy_` (from torch 2.1 on), which is faster than a loop. Without it, this is that loop.
    """
    copy = getattr(torch, "_foreach_copy_", None)
    if copy is not None:
        copy(list(targets), list(sources), non_blocking=True)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)


def dtensor_on_host(local: torch.Tensor, like: Any) -> torch.Tensor:
    """A DTensor in the mesh of `like` whose shard is `local`, on the CPU whatever the mesh is of.

    Uses `DTensor(local, spec, requires_grad=...)` and `DTensor._spec`. Without them it is `DTensor.from_local`, which
    moves the shard to a GPU where the mesh is one of GPUs: then a save takes GPU memory for its copy.
    """
    from torch.distributed.tensor import DTensor

    try:
        return DTensor(local, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    except (AttributeError, TypeError):
        return DTensor.from_local(
            local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside what `torch.compile` made, any other module as it is.

    Uses `OptimizedModule._orig_mod` (from torch 2.0 on). Without it a `ConfigError` says what to give instead.
    """
    if type(module).__name__ != "OptimizedModule":
        return module
    try:
        return cast("torch.nn.Module", module._orig_mod)
    except AttributeError as error:
        raise ConfigError(
            "elastic.State: this version of torch hides the module in torch.compile; give the module as it was before"
        ) from error
