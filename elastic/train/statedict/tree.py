"""A state dict taken apart into its tensors and the rest, and put together again.

The rest is what `torch.load(weights_only=True)` takes: dicts, lists, tuples, numbers, text, None. A tensor leaves a
mark in it. Tensors that share their memory (tied weights) are one.
"""

from __future__ import annotations

import copy
import io
import pickle
import pickletools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.serialization import MAGIC_NUMBER, PROTOCOL_VERSION

_MARK = "\0tensor"
_PROTOCOL: Final = 2
"""Of pickle: the one that torch.save writes and `torch.load(weights_only=True)` reads."""
_HEAD: Final = b"".join(
    pickle.dumps(one, _PROTOCOL)
    for one in (
        MAGIC_NUMBER,
        PROTOCOL_VERSION,
        {"protocol_version": PROTOCOL_VERSION, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 8}},
    )
)
_TAIL: Final = pickle.dumps([], _PROTOCOL)
"""What torch.save writes before and after a tree in its older format, which has no zip around it; no tensors here."""

_ZIP: Final = b"PK"
_PLAIN: Final = frozenset({"collections.OrderedDict", "collections.Counter"})

LEAVES: Final = frozenset({bool, int, float, str, type(None), torch.Tensor, torch.nn.Parameter})
"""What is most of a state dict, and no number of numpy's: it is not looked at any closer."""

_OWN_MEMORY: Final = frozenset({torch.Tensor, torch.nn.Parameter})
"""Types of tensors that are seen to share their memory. Others may be a shard, or have no memory at all."""


def split_tensors(tree: Any) -> tuple[Any, list[torch.Tensor]]:
    """The tree with a mark in place of each tensor, and the tensors in the order of the marks.

    Nothing is copied: the tensors are those of the tree.
    """
    tensors: list[torch.Tensor] = []
    begins: dict[int, list[int]] = {}

    def mark(tensor: torch.Tensor) -> dict[str, int]:
        number = len(tensors)
        if type(tensor) in _OWN_MEMORY and tensor.layout is torch.strided and (begin := tensor.data_ptr()):
            others = begins.setdefault(begin, [])
            if others:
                identity = _identity(tensor)
                for other in others:
                    if _identity(tensors[other]) == identity:
                        return {_MARK: other}
            others.append(number)
        tensors.append(tensor)
        return {_MARK: number}

    return _mapped(tree, mark), tensors


def merge_tensors(rest: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The opposite of `split_tensors`."""
    if isinstance(rest, dict):
        if rest.keys() == {_MARK}:
            return tensors[rest[_MARK]]
        return with_attributes(type(rest)({key: merge_tensors(value, tensors) for key, value in rest.items()}), rest)
    if isinstance(rest, list | tuple):
        return type(rest)(merge_tensors(value, tensors) for value in rest)
    return rest


def pack(rest: Any) -> bytes:
    """Write a tree without tensors, so that `unpack` can run no code. At a tenth of what torch.save costs.

    A few tensors in it are no error: torch.save then does it.
    """
    buffer = io.BytesIO()
    buffer.write(_HEAD)
    try:
        _PlainPickler(buffer, _PROTOCOL).dump(rest)
    except _HasTensorsError:
        buffer = io.BytesIO()
        torch.save(rest, buffer)
    else:
        buffer.write(_TAIL)
    return buffer.getvalue()


def unsafe(packed: bytes) -> list[str]:
    """What `unpack` would refuse in that which `pack` wrote, by the names of the classes; [] if it takes it."""
    try:
        unpack(packed)
    except pickle.UnpicklingError:
        if packed.startswith(_ZIP):
            return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(packed)))
        named = {str(argument).replace(" ", ".") for _, argument, _ in _operations(packed) if argument}
        return sorted(named - _PLAIN) or ["a number of more than 2000 bits"]  # All else without a name is taken.
    return []


def unpack(data: bytes) -> Any:
    """Read what `pack` wrote. Raises `pickle.UnpicklingError` for anything that is not plain."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


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


def _operations(packed: bytes) -> Iterator[tuple[str, Any, int | None]]:
    """The names of classes in what `pack` wrote, which is several pickles one after the other."""
    file = io.BytesIO(packed)
    while file.tell() < len(packed):
        for code, argument, place in pickletools.genops(file):
            if code.name in ("GLOBAL", "INST"):
                yield code.name, argument, place


class _HasTensorsError(Exception):
    """The tree is not one without tensors."""


class _PlainPickler(pickle.Pickler):
    """Pickles what is plain. Only what is of no type of Python's own is asked about."""

    def reducer_override(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor | torch.UntypedStorage | torch.TypedStorage):
            raise _HasTensorsError
        return NotImplemented


def _identity(tensor: torch.Tensor) -> Any:
    """What two tensors have in common if they are one. Called only for those that begin at the same byte."""
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _mapped(tree: Any, mark: Callable[[torch.Tensor], dict[str, int]]) -> Any:
    if isinstance(tree, torch.Tensor):
        return mark(tree)
    if type(tree) in (OrderedDict, Counter):
        return with_attributes(type(tree)({key: _mapped(value, mark) for key, value in tree.items()}), tree)
    if isinstance(tree, dict):
        return {key: _mapped(value, mark) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_mapped(value, mark) for value in tree)
    return tree


def with_attributes(made: Any, like: Any) -> Any:
    """A new OrderedDict with the attributes of the old one: a module's `state_dict` has versions there."""
    if isinstance(made, OrderedDict):
        made.__dict__.update(like.__dict__)
    return made
