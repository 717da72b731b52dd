"""Copies of trees of tensors in host memory that is used again and again.

Training waits for nothing of a save but this copy, so it allocates only at the first one. What shares memory in the
tree is copied once and shares memory in the copy (tied weights stay tied). From a card the copies run side by side into
pinned memory, and one synchronisation ends them all.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from elastic.errors import CheckpointError

_ALIGNED = 16
"""Copied ranges start at a multiple of this, so that every tensor in one can be viewed in its own type."""


@dataclass(slots=True)
class _Range:
    """The bytes of one storage that the tree's tensors use, and those tensors by their `id`."""

    storage: torch.UntypedStorage
    first: int
    last: int
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)


class HostCopy:
    """One set of host buffers. A copy is good until the next one is taken."""

    def __init__(self) -> None:
        """Allocate nothing yet."""
        self._buffers: list[torch.Tensor] = []

    def take(self, tree: Any) -> Any:
        """Copy a tree: its tensors into the buffers, everything else anew.

        Tensors come back plain and without gradient; a DTensor comes back as one whose local shard is on the host, in
        the same mesh. Buffers are allocated where those of the last call do not fit.
        """
        found: dict[int, torch.Tensor] = {}
        _collect(tree, found)
        with torch.no_grad():
            local = {key: _local(tensor) for key, tensor in found.items()}
            plain = {key: tensor for key, tensor in local.items() if _is_plain(tensor)}
            copied: dict[int, Any] = {
                key: tensor.resolve_conj().resolve_neg().cpu().clone()
                for key, tensor in local.items()
                if key not in plain
            }
            copied |= self._copy(_ranges(plain))
            memo = {key: _like(found[key], copied[key]) for key in found}
            return copy.deepcopy(tree, memo)

    def _copy(self, ranges: list[_Range]) -> dict[int, torch.Tensor]:
        copied: dict[int, torch.Tensor] = {}
        cards: set[torch.device] = set()
        for index, used in enumerate(ranges):
            device = used.storage.device
            source = torch.empty(0, dtype=torch.uint8, device=device)
            source.set_(used.storage, used.first, (used.last - used.first,), (1,))
            buffer = self._buffer(index, source)
            buffer.copy_(source, non_blocking=True)
            if device.type != "cpu":
                cards.add(device)
            for key, tensor in used.tensors.items():
                offset = tensor.storage_offset() - used.first // tensor.element_size()
                view = torch.empty(0, dtype=tensor.dtype, device="cpu")
                copied[key] = view.set_(buffer.untyped_storage(), offset, tensor.size(), tensor.stride())
        del self._buffers[len(ranges) :]
        for card in cards:
            torch.cuda.current_stream(card).synchronize()
        return copied

    def _buffer(self, index: int, source: torch.Tensor) -> torch.Tensor:
        """The buffer for one range: the one of the last time if it fits. It starts at the range's first byte."""
        pinned = source.device.type == "cuda"
        if index == len(self._buffers):
            self._buffers.append(torch.empty(0, dtype=torch.uint8, device="cpu"))
        if self._buffers[index].numel() != source.numel() or self._buffers[index].is_pinned() != pinned:
            self._buffers[index] = torch.empty(source.numel(), dtype=torch.uint8, pin_memory=pinned, device="cpu")
        return self._buffers[index]


def _collect(tree: Any, found: dict[int, torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        found[id(tree)] = tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            _collect(value, found)
    elif isinstance(tree, list | tuple):
        for value in tree:
            _collect(value, found)


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def _local(tensor: Any) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if _is_sharded(tensor) else tensor.detach()
    return local


def _like(tensor: Any, local: torch.Tensor) -> torch.Tensor:
    if not _is_sharded(tensor):
        return local
    from torch.distributed.tensor import DTensor

    return DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a view of a storage whose bytes can be copied as they are."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.numel() > 0
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def _ranges(tensors: dict[int, torch.Tensor]) -> list[_Range]:
    """Which bytes the tensors use, storage by storage, in the order of the tree."""
    ranges: dict[tuple[torch.device, int], _Range] = {}
    for key, tensor in tensors.items():
        storage = tensor.untyped_storage()
        size = tensor.element_size()
        offset = int(tensor.storage_offset())
        first = offset * size // _ALIGNED * _ALIGNED
        reach = sum((length - 1) * stride for length, stride in zip(tensor.size(), tensor.stride(), strict=True))
        last = (offset + reach + 1) * size
        used = ranges.setdefault((storage.device, storage.data_ptr()), _Range(storage, first, last))
        used.first, used.last = min(used.first, first), max(used.last, last)
        used.tensors[key] = tensor
    return list(ranges.values())


def refuse_sharded(name: str, tree: Any) -> None:
    """Raise CheckpointError if a part that is to be the same on all ranks holds a piece of a sharded tensor."""
    found: dict[int, torch.Tensor] = {}
    _collect(tree, found)
    if any(map(_is_sharded, found.values())):
        raise CheckpointError(f"part {name!r} holds sharded tensors (DTensor); save it as a sharded part")
