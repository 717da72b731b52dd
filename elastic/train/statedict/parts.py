"""The components and plain values of a `State`: how each kind is saved and loaded.

- A **module**, an **optimizer** and any other object with `state_dict` and `load_state_dict` is *replicated*: the same
  on all ranks. DDP, DataParallel and torch.compile are unwrapped, so that a checkpoint fits the bare module.
- A module whose parameters are DTensors (FSDP2, tensor parallelism) and its optimizer are *sharded*: each rank has a
  part of each tensor, under the names of the module.
- A **plain value** is a number, a string, None, a tensor, or a list or dict of them. It is replicated.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Protocol

import torch

from elastic.errors import ConfigError
from elastic.train.statedict.sharded import ShardedModule as ShardedModule
from elastic.train.statedict.sharded import ShardedOptimizer, is_sharded
from elastic.train.statedict.sharded import ShardedPart as ShardedPart
from elastic.train.statedict.tree import is_number_of_numpy, with_attributes
from elastic.train.statedict.tree import without_numpy as without_numpy
from elastic.train.torch_internals import uncompiled

PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of single values and keys of dicts. A subclass, such as an IntEnum, could not be loaded."""

_HINTS: Final = {
    "on the meta device": "move it to a device with values",
    "nested": "convert it to a list of tensors",
    "sharded (DTensor)": "convert it with .full_tensor()",
}

DICTS: Final = frozenset({dict, OrderedDict, Counter})
"""The dicts that `torch.load(weights_only=True)` accepts; the `state_dict` of a module is an OrderedDict."""


class StatePart(Protocol):
    """One component of a state."""

    sharded: bool

    def take(self) -> Any:
        """Return its state: a tree, or a flat dict for a sharded component. Tensors are not copied."""

    def put(self, state: Any) -> None:
        """Load a state that `take` returned, possibly at another world size."""


class ReplicatedPart:
    """An object with `state_dict` and `load_state_dict` that is the same on all ranks."""

    sharded = False

    def __init__(self, thing: Any) -> None:
        """`thing` may be a wrapped module."""
        self.thing = bare(thing) if isinstance(thing, torch.nn.Module) else thing

    def take(self) -> Any:
        """Return its `state_dict`."""
        return without_numpy(self.thing.state_dict())

    def put(self, state: Any) -> None:
        """Call its `load_state_dict`, whose error names keys that do not fit."""
        self.thing.load_state_dict(state)


def make(things: Mapping[str, Any]) -> dict[str, StatePart]:
    """Return the components among `things`, by name; the rest are plain values.

    Raises `ConfigError` for a component that could not be restored.
    """
    modules = {name: bare(thing) for name, thing in things.items() if isinstance(thing, torch.nn.Module)}
    parts: dict[str, StatePart] = {}
    for name, thing in things.items():
        if isinstance(thing, torch.nn.Module):
            module = modules[name]
            parts[name] = ShardedModule(module) if is_sharded(module.parameters()) else ReplicatedPart(module)
        elif isinstance(thing, torch.optim.Optimizer):
            parts[name] = _optimizer(name, thing, modules)
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            parts[name] = ReplicatedPart(thing)
    return parts


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside DDP, DataParallel and torch.compile."""
    while True:
        wrapper = module
        if isinstance(module, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
            module = module.module
        module = uncompiled(module)
        if module is wrapper:
            return module


def require_values(name: str, part: StatePart) -> None:
    """Raise `ConfigError` if a module has parameters or buffers without values yet: on the meta device, or lazy."""
    module = getattr(part, "module", None) or getattr(part, "thing", None)
    if not isinstance(module, torch.nn.Module):
        return
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        if torch.nn.parameter.is_lazy(tensor):
            raise ConfigError(
                f"elastic.State: {key} of {name} is lazy and has no shape yet; call {name} with one batch before "
                "state.restore()"
            )
        if tensor.is_meta:
            raise ConfigError(
                f"elastic.State: {key} of {name} is on the meta device and has no values; call "
                f"{name}.to_empty(device=...) and initialize it before state.restore()"
            )


def plain(name: str, value: Any) -> Any:
    """Convert a plain value for saving: NumPy numbers become Python numbers. Raises `ConfigError` for other types."""
    if isinstance(value, torch.Tensor):
        if value.is_meta or value.is_nested or is_sharded([value]):
            kind = "on the meta device" if value.is_meta else "nested" if value.is_nested else "sharded (DTensor)"
            raise ConfigError(
                f"elastic.State: the tensor {name} is {kind}, which a plain value cannot be; {_HINTS[kind]}"
            )
        return value
    if type(value) in DICTS:
        return with_attributes(type(value)({_key(name, key): plain(name, item) for key, item in value.items()}), value)
    if type(value) in (list, tuple):
        return type(value)(plain(name, item) for item in value)
    return _single(name, value, "is")


def _key(name: str, key: Any) -> Any:
    if type(key) is tuple:
        return tuple(_key(name, item) for item in key)
    return _single(name, key, "has a key that is")


def _single(name: str, value: Any, verb: str) -> Any:
    """Check a number, a string or None."""
    single = value.item() if is_number_of_numpy(value) else value
    if type(single) in PLAIN:
        return single
    hint = (
        "add state_dict() and load_state_dict(), or convert it to a number, string, tensor, or a list or dict of them"
    )
    if hasattr(value, "state_dict"):
        hint = f"pass each of them as a separate component: elastic.State({name}=...)"
    raise ConfigError(f"elastic.State: {name} {verb} of type {type(value).__name__}, which cannot be saved; {hint}")


def on_its_device(restored: Any, living: Any) -> Any:
    """Move each tensor of a restored value to the device of the current tensor in the same position.

    A tensor without such a counterpart stays on the CPU.
    """
    if isinstance(restored, torch.Tensor):
        return restored.to(living.device) if isinstance(living, torch.Tensor) else restored
    if isinstance(restored, dict):
        places = living if isinstance(living, dict) else {}
        made = type(restored)({key: on_its_device(item, places.get(key)) for key, item in restored.items()})
        return with_attributes(made, restored)
    if type(restored) in (list, tuple) and type(living) is type(restored) and len(living) == len(restored):
        return type(restored)(map(on_its_device, restored, living))
    return restored


def _optimizer(name: str, optimizer: torch.optim.Optimizer, modules: Mapping[str, torch.nn.Module]) -> StatePart:
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        raise ConfigError(
            f"elastic.State: {name} is a ZeroRedundancyOptimizer, whose shards cannot change with the world size; "
            "use torch.distributed.fsdp.fully_shard instead"
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not is_sharded(parameters):
        return ReplicatedPart(optimizer)
    ids = {id(parameter) for parameter in parameters}
    for module in modules.values():
        if ids <= {id(parameter) for parameter in module.parameters()}:
            return ShardedOptimizer(module, optimizer)
    raise ConfigError(
        f"elastic.State: {name} is not the optimizer of one sharded module in this state; add the module, and "
        "use a separate optimizer for each module"
    )
