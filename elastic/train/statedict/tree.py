"""A state dict taken apart into its tensors and the rest, and put together again.

The rest is packed as msgpack, with a mark in place of each tensor. Only what msgpack has no type for is written by
`torch.save`, each thing for itself, and read by `torch.load(weights_only=True)`: nothing that is read can run code. All
of it by `torch.save` would make a commit of a small model to memory take 1.7 times as long (measured). Tensors that
share their memory (tied weights) are one.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import torch

_TENSOR: Final = "\0tensor"
_TUPLE: Final = "\0tuple"
_COUNTER: Final = "\0counter"
_ORDERED: Final = "\0ordered"
"""Keys of a dict with one entry that stands for something else: the number of a tensor; a tuple, a Counter, an
OrderedDict with its attributes (a module's `state_dict` has versions there)."""

_SAVED: Final = 1
"""The msgpack extension for what `torch.save` wrote."""

_KEYS: Final = frozenset({str, int})
_PLAIN: Final = frozenset({bool, float, str, bytes, type(None)})
"""Types that msgpack has; of an `int` it has 64 bits."""

LEAVES: Final = frozenset({bool, int, float, str, type(None), torch.Tensor, torch.nn.Parameter})
"""What is most of a state dict, and no number of numpy's: it is not looked at any closer."""

_OWN_MEMORY: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types of tensors that are seen to share their memory. Others may be a shard, or have no memory at all."""


def pack(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Write a tree without its tensors, and list these in the order of their marks.

    No tensor is copied: they are those of the tree.
    """
    packing = _Packing()
    skeleton = packing.mark(tree)
    try:
        return msgspec.msgpack.encode(skeleton), packing.tensors
    except (OverflowError, UnicodeEncodeError):  # A key of more than 64 bits, a text with half a surrogate pair.
        return msgspec.msgpack.encode(_saved(tree)), []


def unpack(data: bytes) -> Any:
    """Read what `pack` wrote: the tree with marks. Raises `pickle.UnpicklingError` for what is not loaded for safety.

    Raises `msgspec.DecodeError` for anything that `pack` did not write.
    """
    return _decoder.decode(data)


def merge_tensors(skeleton: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The tree whose marks are in `skeleton`, or in a part of one."""
    kind = type(skeleton)
    if kind is list:
        return [merge_tensors(value, tensors) for value in skeleton]
    if kind is not dict:
        return skeleton
    if len(skeleton) == 1:
        mark, content = next(iter(skeleton.items()))
        if mark == _TENSOR:
            return tensors[content]
        if mark == _TUPLE:
            return tuple(merge_tensors(content, tensors))
        if mark == _COUNTER:
            return Counter(merge_tensors(content, tensors))
        if mark == _ORDERED:
            items, attributes = merge_tensors(content, tensors)
            made = OrderedDict(items)
            made.__dict__.update(attributes)
            return made
    return {key: merge_tensors(value, tensors) for key, value in skeleton.items()}


def unsafe(packed: bytes) -> list[str]:
    """What `unpack` would refuse in that which `pack` wrote, by the names of the classes; [] if it takes it."""
    names: set[str] = set()

    def look(_: int, data: memoryview) -> None:
        try:
            load(bytes(data))
        except pickle.UnpicklingError:
            classes: list[str] = []
            with suppress(pickle.UnpicklingError):  # It does not read over such a number.
                classes = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
            names.update(classes or ["a number of more than 2000 bits"])  # All else without a name is taken.

    msgspec.msgpack.Decoder(ext_hook=look).decode(packed)
    return sorted(names)


def save(item: Any) -> bytes:
    """What `torch.save` makes of anything."""
    buffer = io.BytesIO()
    torch.save(item, buffer)
    return buffer.getvalue()


def load(data: bytes) -> Any:
    """Read what `save` wrote, onto the CPU. Raises `pickle.UnpicklingError` for what is not loaded for safety."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


_decoder = msgspec.msgpack.Decoder(ext_hook=lambda _, data: load(bytes(data)))


def without_numpy(tree: Any) -> Any:
    """A state dict with Python's numbers in place of numpy's, which `torch.load(weights_only=True)` refuses.

    A learning rate that `numpy.cos` made is one. The dict itself comes back where it has none.
    """
    if isinstance(tree, dict):
        changed = {
            key: new
            for key, value in tree.items()
            if type(value) not in LEAVES and (new := without_numpy(value)) is not value
        }
        if not changed:
            return tree
        made = copy.copy(tree)
        made.update(changed)
        return made
    if type(tree) in (list, tuple):
        if all(type(value) in LEAVES for value in tree):
            return tree
        converted = [without_numpy(value) for value in tree]
        return tree if all(new is value for new, value in zip(converted, tree, strict=True)) else type(tree)(converted)
    return tree.item() if is_number_of_numpy(tree) else tree


def is_number_of_numpy(value: Any) -> bool:
    """Tell whether it is one, also as an array without dimensions."""
    return type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0


class _Packing:
    """One tree that is packed: its tensors, and which of them begin at the same byte."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._begins: dict[int, list[int]] = {}

    def mark(self, tree: Any) -> Any:
        """The tree as msgpack takes it."""
        kind = type(tree)
        if kind in _PLAIN or (kind is int and -(1 << 63) <= tree < 1 << 64):
            return tree
        if isinstance(tree, torch.Tensor):
            return {_TENSOR: self._number(tree)}
        if kind is list:
            return [self.mark(value) for value in tree]
        if kind is tuple:
            return {_TUPLE: [self.mark(value) for value in tree]}
        if isinstance(tree, dict) and _KEYS.issuperset(map(type, tree)):
            marked = {key: self.mark(value) for key, value in tree.items()}
            if kind is OrderedDict:
                return {_ORDERED: [marked, self.mark(tree.__dict__)]}
            return {_COUNTER: marked} if kind is Counter else marked
        return _saved(tree)

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor: that of an earlier one if they are one."""
        if type(tensor) in _OWN_MEMORY and tensor.layout is torch.strided and (begin := tensor.data_ptr()):
            others = self._begins.setdefault(begin, [])
            if others:
                identity = _identity(tensor)
                for other in others:
                    if _identity(self.tensors[other]) == identity:
                        return other
            others.append(len(self.tensors))
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _saved(item: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_SAVED, save(item))


def _identity(tensor: torch.Tensor) -> Any:
    """What two tensors have in common if they are one. Called only for those that begin at the same byte."""
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def with_attributes(made: Any, like: Any) -> Any:
    """A new OrderedDict with the attributes of the old one: a module's `state_dict` has versions there."""
    if isinstance(made, OrderedDict):
        made.__dict__.update(like.__dict__)
    return made
