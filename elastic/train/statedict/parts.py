"""What a `State` consists of, and how each kind of thing is taken out and put back.

- A **module**, an **optimizer** and everything else with `state_dict` and `load_state_dict` is *replicated*: the same
  on all ranks. DDP, DataParallel and torch.compile are looked through, so that a checkpoint fits the bare module.
- A module whose parameters are DTensors (FSDP2, tensor parallelism) and its optimizer are *sharded*: each rank has a
  part of each tensor, under the module's own names.
- A **value** is a number, a text, None, a tensor, or a list or dict of them. It is replicated.
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
"""What is a value by itself, and may be a key of a dict. A subclass, as of an IntEnum, could not be loaded."""

_HINTS: Final = {
    "on the meta device": "give it a device that has values",
    "nested": "make it a list of tensors",
    "sharded (DTensor)": "make it whole with .full_tensor()",
}

DICTS: Final = frozenset({dict, OrderedDict, Counter})
"""The dicts that `torch.load(weights_only=True)` takes; a module's `state_dict` is an OrderedDict."""


class StatePart(Protocol):
    """One named thing of a state."""

    sharded: bool

    def take(self) -> Any:
        """Its state: a tree, or for a sharded part a flat dict. Tensors are the living ones, not copies."""

    def put(self, state: Any) -> None:
        """Give it a state that `take` once returned, perhaps in another world."""


class ReplicatedPart:
    """A thing with `state_dict` and `load_state_dict` that is the same on all ranks."""

    sharded = False

    def __init__(self, thing: Any) -> None:
        """`thing` may be a wrapped module."""
        self.thing = bare(thing) if isinstance(thing, torch.nn.Module) else thing

    def take(self) -> Any:
        """Its `state_dict`."""
        return without_numpy(self.thing.state_dict())

    def put(self, state: Any) -> None:
        """Its `load_state_dict`. What does not fit is torch's own error, which names the keys."""
        self.thing.load_state_dict(state)


def make(things: Mapping[str, Any]) -> dict[str, StatePart]:
    """The parts among `things`, by name; what is not here is a plain value.

    Raises `ConfigError` for a thing that could not be restored.
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
    """The module inside DDP, DataParallel and torch.compile."""
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
                f"elastic.State: {key} of {name} is lazy and has no shape yet; call {name} with a batch once before "
                "state.restore()"
            )
        if tensor.is_meta:
            raise ConfigError(
                f"elastic.State: {key} of {name} is on the meta device and has no values; call "
                f"{name}.to_empty(device=...) and initialize it before state.restore()"
            )


def plain(name: str, value: Any) -> Any:
    """A value as it is kept: numbers of numpy become Python's. `ConfigError` for what could not be loaded again."""
    if isinstance(value, torch.Tensor):
        if value.is_meta or value.is_nested or is_sharded([value]):
            kind = "on the meta device" if value.is_meta else "nested" if value.is_nested else "sharded (DTensor)"
            raise ConfigError(f"elastic.State: {name} is a tensor that is {kind}, which is no value; {_HINTS[kind]}")
        return value
    if type(value) in DICTS:
        return with_attributes(type(value)({_key(name, key): plain(name, item) for key, item in value.items()}), value)
    if type(value) in (list, tuple):
        return type(value)(plain(name, item) for item in value)
    return _single(name, value, "is")


def _key(name: str, key: Any) -> Any:
    if type(key) is tuple:
        return tuple(_key(name, one) for one in key)
    return _single(name, key, "has a key that is")


def _single(name: str, value: Any, verb: str) -> Any:
    """A number, a text or None."""
    single = value.item() if is_number_of_numpy(value) else value
    if type(single) in PLAIN:
        return single
    hint = (
        "give it state_dict() and load_state_dict(), or make it a number, a text, a tensor, or a list or dict of them"
    )
    if hasattr(value, "state_dict"):
        hint = f"such things are parts: give each a name of its own, elastic.State({name}=...)"
    raise ConfigError(f"elastic.State: {name} {verb} of type {type(value).__name__}, which cannot be saved; {hint}")


def on_its_device(restored: Any, living: Any) -> Any:
    """A value that was restored, each tensor on the device of the one that stands at its place now.

    One that has no such counterpart stays where it is: on the CPU, as everything that was sent or read.
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
            f"elastic.State: {name} is a ZeroRedundancyOptimizer, whose parts cannot be moved between worlds; "
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
        "give each module an optimizer of its own"
    )
