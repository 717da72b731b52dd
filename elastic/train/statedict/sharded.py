"""Parts of a state of which each rank has a piece: modules with DTensors, and their optimizers.

Both are flat dicts under the module's own names, so that they fit any world. What an optimizer keeps depends on what it
did: nothing for a parameter that had no gradient yet. So what is loaded into is made after what was saved, not after
what the optimizer of this world, which has done nothing, would keep.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

import torch

from elastic.train.statedict.tree import without_numpy

STATE: Final = "state."
SETTINGS: Final = "param_groups."
"""How the keys of an optimizer begin; then the name of a parameter, a dot, and the name of what it is."""

_WRAPPERS: Final = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module)(?=\.)")
"""What torch.compile and activation checkpointing put into the names of parameters."""


class SavedTensor(NamedTuple):
    """A tensor that was saved: the shape of the whole, and its type."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Template = Callable[[Mapping[str, SavedTensor | None]], dict[str, Any]]
"""What is loaded into, made from what was saved by its keys; None is a plain value."""


class ShardedPart(Protocol):
    """A part whose tensors are shards."""

    def template(self, saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
        """A dict with tensors of this world to load into."""


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

    def template(self, saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
        """The module's own tensors: whatever was saved, it has all of them."""
        return self.take()

    def put(self, state: dict[str, Any]) -> None:
        """Load shards of this world, or whole tensors of a module that was not sharded when it was saved."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        whole = is_sharded(self.module.parameters()) and not is_sharded(state.values())
        set_model_state_dict(self.module, state, options=StateDictOptions(full_state_dict=whole))


class ShardedOptimizer:
    """The optimizer of a sharded module: moments as DTensors, settings as values, by the names of the parameters."""

    sharded = True

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """`module` has the parameters of `optimizer`."""
        self.module = module
        self.optimizer = optimizer

    def take(self) -> dict[str, Any]:
        """What it keeps for each parameter, and the settings of the parameter's group."""
        names = self._names()
        entries: dict[str, Any] = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                entries |= {f"{SETTINGS}{name}.{key}": value for key, value in group.items() if key != "params"}
                state = self.optimizer.state.get(parameter, {})  # Not by []: that would make an empty one.
                entries |= {f"{STATE}{name}.{key}": value for key, value in state.items()}
        flat: dict[str, Any] = without_numpy(entries)
        return flat

    def template(self, saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
        """A tensor for each that was saved: sharded as its parameter if it has the shape of it, otherwise whole."""
        parameters = self._parameters()
        made: dict[str, Any] = {}
        for key, stored in saved.items():
            name, what = _parted(key)
            like = parameters.get(name)
            if stored is None:
                made[key] = None
            elif like is None or what == "step" or not key.startswith(STATE) or tuple(like.shape) != stored.shape:
                made[key] = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
            else:
                made[key] = torch.empty_like(like, dtype=stored.dtype, requires_grad=False)
        return made

    def put(self, state: dict[str, Any]) -> None:
        """Load what `template` gave, filled. Raises `ValueError` if it is of an optimizer of other parameters."""
        by_name: dict[str, dict[str, dict[str, Any]]] = {STATE: {}, SETTINGS: {}}
        for key, value in state.items():
            name, what = _parted(key)
            by_name[STATE if key.startswith(STATE) else SETTINGS].setdefault(name, {})[what] = value
        names, number = self._names(), 0
        groups: list[dict[str, Any]] = []
        states: dict[int, dict[str, Any]] = {}
        for group in self.optimizer.param_groups:
            own_names = [names[id(parameter)] for parameter in group["params"]]
            settings = {key: value for key, value in group.items() if key != "params"}
            for name in own_names[:1]:
                settings |= by_name[SETTINGS].get(name, {})
            groups.append({**settings, "params": list(range(number, number + len(own_names)))})
            states |= {at: by_name[STATE][name] for at, name in enumerate(own_names, number) if name in by_name[STATE]}
            number += len(own_names)
        known, saved = self._parameters().keys(), by_name[SETTINGS].keys()
        wrong = [
            f"{who} has not {', '.join(sorted(names))}"
            for who, names in (("this optimizer", saved - known), ("it", known - saved))
            if names
        ]
        if wrong:
            raise ValueError(f"what was saved is of an optimizer of other parameters: {', and '.join(wrong)}")
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        names = self._names()
        return {names[id(one)]: one for group in self.optimizer.param_groups for one in group["params"]}

    def _names(self) -> dict[int, str]:
        """The name of each parameter by its `id`, as the bare module has it."""
        return {id(one): _WRAPPERS.sub("", name).lstrip(".") for name, one in self.module.named_parameters()}


def is_sharded(tensors: Iterable[torch.Tensor]) -> bool:
    """Tell whether one of them is a DTensor."""
    return any(map(is_dtensor, tensors))


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is a DTensor, without loading their module."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)  # Not loaded, or just being so by a save's thread: nobody has made one.
    return kind is not None and isinstance(tensor, kind)


def _parted(key: str) -> tuple[str, str]:
    """The name of the parameter and what it is of it."""
    name, _, what = key.removeprefix(STATE).removeprefix(SETTINGS).rpartition(".")
    return name, what
