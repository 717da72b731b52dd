"""Splits a state dict into its tensors and the rest, and merges them again.

The rest is packed as msgpack, with a placeholder for each tensor. Each object without a msgpack type is written by
`torch.save` and read by `torch.load(weights_only=True)`, so that reading never runs code. With `torch.save` for all of
it, an in-memory commit of a small model would take 1.7 times as long (measured). Tensors that share their memory (tied
weights) are stored once.
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
"""Keys of a dict with one entry that represents another object: the number of a tensor; a tuple, a Counter, an
OrderedDict with its attributes (the `state_dict` of a module has versions there)."""

_SAVED: Final = 1
"""The msgpack extension for objects that `torch.save` wrote."""

_KEYS: Final = frozenset({str, int})
_PLAIN: Final = frozenset({bool, float, str, bytes, type(None)})
"""Types that msgpack has, in addition to an `int` of 64 bits."""

LEAVES: Final = frozenset({bool, int, float, str, type(None), torch.Tensor, torch.nn.Parameter})
"""The types of most values of a state dict, none of which is a NumPy number: they need no conversion."""

_OWN_MEMORY: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types of tensors that are compared by their memory. Others may be a shard, or have no memory."""


def pack(tree: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Encode a tree without its tensors, and return the tensors in the order of their placeholders, not copied."""
    packing = _Packing()
    skeleton = packing.mark(tree)
    try:
        return msgspec.msgpack.encode(skeleton), packing.tensors
    except (OverflowError, UnicodeEncodeError):  # A key of more than 64 bits, or a lone surrogate.
        return msgspec.msgpack.encode(_saved(tree)), []


def unpack(data: bytes) -> Any:
    """Decode the result of `pack`: the tree with placeholders.

    Raises `pickle.UnpicklingError` for objects that are not safe to load, and `msgspec.DecodeError` for other data.
    """
    return _decoder.decode(data)


def merge_tensors(skeleton: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """Replace the placeholders in `skeleton`, or in a part of one, by the tensors."""
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
    """Return the names of the classes in a packed tree that `unpack` would reject; [] if it accepts the tree."""
    names: set[str] = set()

    def look(_: int, data: memoryview) -> None:
        try:
            load(bytes(data))
        except pickle.UnpicklingError:
            classes: list[str] = []
            with suppress(pickle.UnpicklingError):  # It cannot skip a number of that size.
                classes = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data))
            names.update(classes or ["a number of more than 2000 bits"])  # Everything else without a name is accepted.

    msgspec.msgpack.Decoder(ext_hook=look).decode(packed)
    return sorted(names)


def save(item: Any) -> bytes:
    """Return the bytes that `torch.save` writes for an object."""
    buffer = io.BytesIO()
    torch.save(item, buffer)
    return buffer.getvalue()


def load(data: bytes) -> Any:
    """Load the result of `save` to the CPU. Raises `pickle.UnpicklingError` for objects that are not safe to load."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


_decoder = msgspec.msgpack.Decoder(ext_hook=lambda _, data: load(bytes(data)))


def without_numpy(tree: Any) -> Any:
    """Convert NumPy numbers in a state dict to Python numbers, because `torch.load(weights_only=True)` rejects them.

    A learning rate from `numpy.cos` is such a number. A dict without any is returned unchanged.
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
    """Return whether a value is a NumPy number, or an array without dimensions."""
    return type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0


class _Packing:
    """The packing of one tree: its tensors, and those that start at the same address."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self._begins: dict[int, list[int]] = {}

    def mark(self, tree: Any) -> Any:
        """Convert the tree for msgpack."""
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
        """Return the number of a tensor, which is that of an equal earlier one."""
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
    """Return a key that is equal for two tensors with the same memory and layout."""
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def with_attributes(made: Any, like: Any) -> Any:
    """Copy the attributes of an OrderedDict to a new one: the `state_dict` of a module has versions there."""
    if isinstance(made, OrderedDict):
        made.__dict__.update(like.__dict__)
    return made
