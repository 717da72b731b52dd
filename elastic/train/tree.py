"""A state dict taken apart into its tensors and the rest, and put together again.

The rest is what `torch.load(weights_only=True)` takes: dicts, lists, tuples, numbers, text, None. A tensor leaves a
mark in it. Tensors that share their memory (tied weights) are one.
"""

from __future__ import annotations

import io
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

_MARK = "\0tensor"


def take_apart(tree: Any) -> tuple[Any, list[torch.Tensor]]:
    """The tree with a mark in place of each tensor, and the tensors in the order of the marks.

    Nothing is copied: the tensors are those of the tree.
    """
    tensors: list[torch.Tensor] = []
    seen: dict[Any, int] = {}

    def mark(tensor: torch.Tensor) -> dict[str, int]:
        key = _identity(tensor)
        if key is None or key not in seen:
            if key is not None:
                seen[key] = len(tensors)
            tensors.append(tensor)
            return {_MARK: len(tensors) - 1}
        return {_MARK: seen[key]}

    return _mapped(tree, mark), tensors


def put_together(rest: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The opposite of `take_apart`."""
    if isinstance(rest, dict):
        if rest.keys() == {_MARK}:
            return tensors[rest[_MARK]]
        return type(rest)({key: put_together(value, tensors) for key, value in rest.items()})
    if isinstance(rest, list | tuple):
        return type(rest)(put_together(value, tensors) for value in rest)
    return rest


def pack(rest: Any) -> bytes:
    """Write a tree without tensors, so that `unpack` can run no code."""
    buffer = io.BytesIO()
    torch.save(rest, buffer)
    return buffer.getvalue()


def unsafe(packed: bytes) -> list[str]:
    """What `unpack` would refuse in that which `pack` wrote, by the names of the classes."""
    return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(packed)))


def unpack(data: bytes) -> Any:
    """Read what `pack` wrote. Raises `pickle.UnpicklingError` for anything that is not plain."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _identity(tensor: torch.Tensor) -> Any:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.numel():
        return None
    return (
        tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(),
        tensor.dtype,
    )  # fmt: skip


def _mapped(tree: Any, mark: Callable[[torch.Tensor], dict[str, int]]) -> Any:
    if isinstance(tree, torch.Tensor):
        return mark(tree)
    if type(tree) in (OrderedDict, Counter):
        return type(tree)({key: _mapped(value, mark) for key, value in tree.items()})
    if isinstance(tree, dict):
        return {key: _mapped(value, mark) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_mapped(value, mark) for value in tree)
    return tree
