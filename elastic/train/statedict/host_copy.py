"""Copies trees of tensors to reusable host memory.

Training waits only for this copy of a save, so the buffers are allocated once. Tensors that share memory are copied
once and share memory in the copy (tied weights stay tied). Copies from a GPU run in parallel to pinned memory, with one
synchronization at the end.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from elastic.errors import CheckpointError
from elastic.train.statedict.sharded import is_dtensor, is_sharded
from elastic.train.torch_internals import copy_all, dtensor_on_host

_ALIGNED = 16
"""Copied ranges start at a multiple of this, so that every tensor in one can be viewed with its dtype."""
_UNCHANGING = frozenset({bool, int, float, complex, str, bytes, type(None)})


@dataclass(slots=True)
class _StorageRange:
    """The bytes of one storage that tensors of the tree use, and those tensors by their `id`."""

    storage: torch.UntypedStorage
    first: int
    last: int
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _CopyPlan:
    """The plan of the copies, valid as long as the memory of every tensor stays the same.

    `views` are the copies, in the order of the tensors. A tensor that fills its range is copied directly (`whole`). If
    several tensors share a range, or one has gaps, the bytes of the range are copied once (`shared`), from the storage
    of one of its tensors.
    """

    places: list[Any]
    views: list[torch.Tensor]
    whole: list[int]
    shared: list[tuple[int, int, torch.Tensor]]
    gpus: set[torch.device]


class HostCopy:
    """One set of host buffers. A copy is valid until the next one."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._plan = _CopyPlan([], [], [], [], set())

    def take(self, tree: Any) -> Any:
        """Copy a tree: its tensors to the buffers, everything else as a deep copy.

        The copies are plain tensors without gradients; the copy of a DTensor is a DTensor in the same mesh whose local
        shard is on the host. New buffers are allocated if those of the last call do not fit.
        """
        tensors: dict[int, torch.Tensor] = {}
        _collect(tree, tensors)
        with torch.no_grad():
            local = {key: _local(tensor) for key, tensor in tensors.items()}
            plain = {key: tensor for key, tensor in local.items() if _is_plain(tensor)}
            copied: dict[int, Any] = dict(zip(plain, self._copy(list(plain.values())), strict=True))
            for key, tensor in local.items():
                if key not in plain:
                    copied[key] = tensor.resolve_conj().resolve_neg().cpu().clone()
                if is_dtensor(tensors[key]):
                    copied[key] = dtensor_on_host(copied[key], tensors[key])
            return _rebuilt(tree, copied)

    def _copy(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        places = [(tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device) for tensor in tensors]
        if places != self._plan.places:
            self._plan = self._planned(places, tensors)
        plan = self._plan
        if plan.whole:
            targets, sources = [plan.views[at] for at in plan.whole], [tensors[at] for at in plan.whole]
            copy_all(targets, sources)
        for at, first, buffer in plan.shared:
            source = torch.empty(0, dtype=torch.uint8, device=tensors[at].device)
            source.set_(tensors[at].untyped_storage(), first, (buffer.numel(),), (1,))
            buffer.copy_(source, non_blocking=True)
        for gpu in plan.gpus:
            torch.cuda.current_stream(gpu).synchronize()
        return plan.views

    def _planned(self, places: list[Any], tensors: list[torch.Tensor]) -> _CopyPlan:
        plan = _CopyPlan(
            places, list(tensors), [], [], {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
        )
        ranges = _ranges(dict(enumerate(tensors)))
        for index, used in enumerate(ranges):
            size = used.last - used.first
            buffer = self._buffer(index, size, pinned=used.storage.device.type == "cuda")
            for at, tensor in used.tensors.items():
                offset = tensor.storage_offset() - used.first // tensor.element_size()
                view = torch.empty(0, dtype=tensor.dtype, device="cpu")
                plan.views[at] = view.set_(buffer.untyped_storage(), offset, tensor.size(), tensor.stride())
            if len(used.tensors) == 1 and tensor.nbytes == size and _is_dense(tensor):
                plan.whole.append(at)
            else:
                plan.shared.append((at, used.first, buffer))
        del self._buffers[len(ranges) :]
        return plan

    def _buffer(self, index: int, size: int, *, pinned: bool) -> torch.Tensor:
        """Return the buffer for one range: that of the last copy if it fits."""
        if index == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.uint8, device="cpu"))
        if self._buffers[index].numel() != size or self._buffers[index].is_pinned() != pinned:
            self._buffers[index] = torch.empty(size, dtype=torch.uint8, pin_memory=pinned, device="cpu")
        return self._buffers[index]


def _rebuilt(tree: Any, copied: Mapping[int, Any]) -> Any:
    """Return a deep copy of the tree with the copied tensors."""
    kind = type(tree)
    if kind in _UNCHANGING:
        return tree
    if kind is dict:
        return {key: _rebuilt(value, copied) for key, value in tree.items()}
    if kind in (list, tuple):
        return kind(_rebuilt(value, copied) for value in tree)
    if kind is OrderedDict:
        made = OrderedDict((key, _rebuilt(value, copied)) for key, value in tree.items())
        made.__dict__.update(copy.deepcopy(tree.__dict__))  # A module stores the versions of its submodules there.
        return made
    if isinstance(tree, torch.Tensor):
        return copied[id(tree)]
    return copy.deepcopy(tree, dict(copied))


def _collect(tree: Any, tensors: dict[int, torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        tensors[id(tree)] = tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            _collect(value, tensors)
    elif isinstance(tree, list | tuple):
        for value in tree:
            _collect(value, tensors)


def _local(tensor: Any) -> torch.Tensor:
    if type(tensor) is torch.Tensor and not tensor.requires_grad:
        return tensor
    local: torch.Tensor = tensor.to_local() if is_dtensor(tensor) else tensor.detach()
    return local


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a view of a storage whose bytes can be copied directly."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.numel() > 0
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether a tensor uses each byte from its first to its last exactly once, in any order."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.size(), strict=True)):
        if length > 1:
            if stride != expected:
                return False
            expected *= length
    return True


def _ranges(tensors: dict[int, torch.Tensor]) -> list[_StorageRange]:
    """Return the bytes that the tensors use, by storage, in the order of the tree."""
    ranges: dict[tuple[torch.device, int], _StorageRange] = {}
    for key, tensor in tensors.items():
        storage = tensor.untyped_storage()
        size = tensor.element_size()
        offset = int(tensor.storage_offset())
        first = offset * size // _ALIGNED * _ALIGNED
        reach = sum((length - 1) * stride for length, stride in zip(tensor.size(), tensor.stride(), strict=True))
        last = (offset + reach + 1) * size
        used = ranges.setdefault((storage.device, storage.data_ptr()), _StorageRange(storage, first, last))
        used.first, used.last = min(used.first, first), max(used.last, last)
        used.tensors[key] = tensor
    return list(ranges.values())


def require_replicated(name: str, tree: Any) -> None:
    """Raise CheckpointError if a replicated component contains a sharded tensor."""
    tensors: dict[int, torch.Tensor] = {}
    _collect(tree, tensors)
    if is_sharded(tensors.values()):
        raise CheckpointError(f"component {name!r} contains sharded tensors (DTensor); save it as a sharded component")
