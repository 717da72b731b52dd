"""Every use of a private name of torch, each behind one function or class.

No other module of the library uses a private name of torch; a test checks that. Each docstring names what it uses, and
what happens with a version of torch that no longer has it.
"""

from __future__ import annotations

import inspect
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
    """Counts the batches that a loop over torch's DataLoader has taken, even after the loop has ended.

    It does not keep the DataLoader's iterator alive, which stops its workers when it is dropped: it holds only the
    attributes of the iterator, and releases them with it. It uses `_num_yielded`, the number of batches that the loop
    has taken; `_index_sampler`, the source of the indices; and `_in_order` (torch 2.7 and later). Without the first two
    it cannot count: `takes_from` is False, and the error of the sampler asks for `elastic.DataLoader` or `advance`.
    """

    def __init__(self, iterator: Any) -> None:
        """Follow an iterator of a DataLoader from its start."""
        self._attributes: dict[str, Any] | None = vars(iterator)
        self._taken = 0
        self._alive = weakref.ref(iterator, self._end)

    def takes_from(self, sampler: object) -> bool:
        """Return whether the loop takes its indices from `sampler`, and its batches can be counted."""
        attributes = self._attributes or {}
        return attributes.get("_index_sampler") is sampler and "_num_yielded" in attributes

    @property
    def taken(self) -> int:
        """The number of batches that the loop has taken so far.

        With persistent workers the iterator also serves the next loop and restarts its count; the largest count that
        was read stays.
        """
        if self._attributes is not None:
            self._taken = max(self._taken, int(self._attributes["_num_yielded"]))
        return self._taken

    @property
    def in_order(self) -> bool:
        """Whether batches come in the order of the indices; False with DataLoader(in_order=False)."""
        return self._attributes is None or bool(self._attributes.get("_in_order", True))

    def _end(self, _: object) -> None:
        self._taken = self.taken
        self._attributes = None


def without_worker_info(make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the samples of `make()`, read within a DataLoader worker as if there were no other worker.

    Many iterable datasets split themselves among DataLoader workers: they call `get_worker_info`, which returns
    `_worker_info`. `ElasticStream` splits the samples, so the dataset gets None while it is read. With a torch that
    stores this elsewhere the samples would be split twice; a test would fail.
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
    """Return the store of the process group, for which torch has no public function."""
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


SCHEDULER_RATES: Final = ("base_lrs", "max_lrs", "_last_lr")
"""Lists of learning rates in a scheduler: CyclicLR has `max_lrs`; `_last_lr` is what `get_last_lr` returns."""


def inner_schedulers(scheduler: Any) -> Iterable[Any]:
    """Return the inner schedulers of a SequentialLR or ChainedScheduler; none for any other scheduler."""
    return getattr(scheduler, "_schedulers", ())


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy tensors without waiting for a GPU.

    Uses `torch._foreach_copy_` (torch 2.1 and later), which is faster than a loop; without it, copies in a loop.
    """
    copy = getattr(torch, "_foreach_copy_", None)
    if copy is not None:
        copy(list(targets), list(sources), non_blocking=True)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source, non_blocking=True)


def load_alone() -> dict[str, Any]:
    """Return the arguments with which `sharded_part` loads a checkpoint in this process only, without its group.

    torch.distributed.checkpoint's `load` has `no_dist` in torch 2.13; in 2.6 only `_load_state_dict` has it.
    """
    from torch.distributed.checkpoint import state_dict_loader

    if "no_dist" in inspect.signature(state_dict_loader.load).parameters:
        return {"no_dist": True}
    return {"no_dist": True, "function": state_dict_loader._load_state_dict}


def dtensor_on_host(local: torch.Tensor, like: Any) -> torch.Tensor:
    """Return a DTensor in the mesh of `like` whose shard is `local`, on the CPU even if the mesh is one of GPUs.

    Uses `DTensor(local, spec, requires_grad=...)` and `DTensor._spec`. Without them it uses `DTensor.from_local`,
    which moves the shard to the mesh's device: a save then takes GPU memory for its copy.
    """
    from torch.distributed.tensor import DTensor

    try:
        return DTensor(local, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    except (AttributeError, TypeError):
        return DTensor.from_local(
            local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )


def uncompiled(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside the result of `torch.compile`; any other module unchanged.

    Uses `OptimizedModule._orig_mod` (torch 2.0 and later). Without it, raises a `ConfigError` with a fix.
    """
    if type(module).__name__ != "OptimizedModule":
        return module
    try:
        return cast("torch.nn.Module", module._orig_mod)
    except AttributeError as error:
        raise ConfigError(
            "elastic.State: this version of torch hides the module in torch.compile; pass the module before compilation"
        ) from error
