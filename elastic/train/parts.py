"""What a `State` consists of, and how each kind of thing is taken out and put back.

- A **module**, an **optimizer** and everything else with `state_dict` and `load_state_dict` is *replicated*: the same
  on all ranks. DDP, DataParallel and torch.compile are looked through, so that a checkpoint fits the bare module.
- A module whose parameters are DTensors (FSDP2, tensor parallelism) and its optimizer are *sharded*: each rank has a
  part of each tensor, under the module's own names.
- A **value** is a number, a text, None, a tensor, or a list or dict of them. It is replicated.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, cast

import torch

from elastic.errors import ConfigError

PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), torch.Tensor)


LEAVES: Final = frozenset({bool, int, float, str, type(None), torch.Tensor, torch.nn.Parameter})
"""What is most of a state dict, and no number of numpy's: it is not looked at any closer."""


class Part(Protocol):
    """One named thing of a state."""

    sharded: bool

    def take(self) -> Any:
        """Its state: a tree, or for a sharded part a flat dict. Tensors are the living ones, not copies."""

    def put(self, state: Any) -> None:
        """Give it a state that `take` once returned, perhaps in another world."""


class Replicated:
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


class ShardedModule:
    """A module with DTensors for parameters."""

    sharded = True

    def __init__(self, module: torch.nn.Module) -> None:
        """`module` as `fully_shard` left it."""
        self.module = module

    def take(self) -> dict[str, Any]:
        """Parameters and buffers by name: this rank's shards as DTensors."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return dict(get_model_state_dict(self.module))

    def put(self, state: dict[str, Any]) -> None:
        """Load shards of this world, or whole tensors of a module that was not sharded when it was saved."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        whole = is_sharded(self.module.parameters()) and not is_sharded(state.values())
        set_model_state_dict(self.module, state, options=StateDictOptions(full_state_dict=whole))


class ShardedOptimizer:
    """The optimizer of sharded modules. Its state is named after the parameters, so that it fits any world."""

    sharded = True

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """`module` has the parameters of `optimizer`."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        self.module = module
        self.optimizer = optimizer
        self._options = StateDictOptions(flatten_optimizer_state_dict=True)

    def take(self) -> dict[str, Any]:
        """Moments as DTensors, settings as values."""
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        found = dict(get_optimizer_state_dict(self.module, self.optimizer, options=self._options))
        return cast("dict[str, Any]", without_numpy(found))

    def put(self, state: dict[str, Any]) -> None:
        """Load shards of this world."""
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        set_optimizer_state_dict(self.module, self.optimizer, cast("Any", state), options=self._options)


def make(things: Mapping[str, Any]) -> dict[str, Part]:
    """The parts among `things`, by name; what is not here is a plain value.

    Raises `ConfigError` for a thing that could not be restored.
    """
    modules = {name: bare(thing) for name, thing in things.items() if isinstance(thing, torch.nn.Module)}
    parts: dict[str, Part] = {}
    for name, thing in things.items():
        if isinstance(thing, torch.nn.Module):
            module = modules[name]
            parts[name] = ShardedModule(module) if is_sharded(module.parameters()) else Replicated(module)
        elif isinstance(thing, torch.optim.Optimizer):
            parts[name] = _optimizer(name, thing, modules)
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            parts[name] = Replicated(thing)
    return parts


def bare(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside DDP, DataParallel and torch.compile."""
    while True:
        kind = type(module)
        if isinstance(module, torch.nn.parallel.DistributedDataParallel | torch.nn.DataParallel):
            module = module.module
        elif kind.__name__ == "OptimizedModule":
            module = cast("torch.nn.Module", module._orig_mod)
        else:
            return module


def is_sharded(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether one of them is a DTensor."""
    module = sys.modules.get("torch.distributed.tensor")  # Not loaded: then nobody has made one.
    return module is not None and any(isinstance(tensor, module.DTensor) for tensor in tensors)


def plain(name: str, value: Any) -> Any:
    """A value as it is kept: numbers of numpy become Python's. `ConfigError` for what could not be loaded again."""
    if _is_number_of_numpy(value):
        return value.item()
    if isinstance(value, Mapping) and type(value) in (dict,):
        return {key: plain(name, one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(name, one) for one in value)
    if isinstance(value, PLAIN):
        return value
    raise ConfigError(
        f"elastic.State: {name} is of type {type(value).__name__}, which cannot be saved; give it state_dict() and "
        "load_state_dict(), or make it a number, a text, a tensor, or a list or dict of them"
    )


def on_its_device(restored: Any, living: Any) -> Any:
    """A value that was restored, each tensor on the device of the one that stands at its place now.

    One that has no such counterpart stays where it is: on the CPU, as everything that was sent or read.
    """
    if isinstance(restored, torch.Tensor):
        return restored.to(living.device) if isinstance(living, torch.Tensor) else restored
    if isinstance(restored, dict):
        places = living if isinstance(living, dict) else {}
        return {key: on_its_device(one, places.get(key)) for key, one in restored.items()}
    if type(restored) in (list, tuple) and type(living) is type(restored) and len(living) == len(restored):
        return type(restored)(map(on_its_device, restored, living))
    return restored


def without_numpy(tree: Any) -> Any:
    """A state dict with Python's numbers in place of numpy's, which `torch.load(weights_only=True)` refuses.

    A learning rate that `numpy.cos` made is one. The dict itself comes back where it has none.
    """
    if isinstance(tree, dict):
        changed = {
            key: new for key, one in tree.items() if type(one) not in LEAVES and (new := without_numpy(one)) is not one
        }
        if not changed:
            return tree
        made = copy.copy(tree)
        made.update(changed)
        return made
    if type(tree) in (list, tuple):
        if all(type(one) in LEAVES for one in tree):
            return tree
        found = [without_numpy(one) for one in tree]
        return tree if all(new is one for new, one in zip(found, tree, strict=True)) else type(tree)(found)
    return tree.item() if _is_number_of_numpy(tree) else tree


def _is_number_of_numpy(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0


def _optimizer(name: str, optimizer: torch.optim.Optimizer, modules: Mapping[str, torch.nn.Module]) -> Part:
    if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
        raise ConfigError(
            f"elastic.State: {name} is a ZeroRedundancyOptimizer, whose parts cannot be moved between worlds; "
            "use torch.distributed.fsdp.fully_shard instead"
        )
    mine = [one for group in optimizer.param_groups for one in group["params"]]
    if not is_sharded(mine):
        return Replicated(optimizer)
    ids = {id(one) for one in mine}
    for module in modules.values():
        if ids <= {id(one) for one in module.parameters()}:
            return ShardedOptimizer(module, optimizer)
    raise ConfigError(
        f"elastic.State: {name} is not the optimizer of one sharded module in this state; add the module, and "
        "give each module an optimizer of its own"
    )
