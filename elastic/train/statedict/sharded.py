"""Sharded components of a state: modules with DTensors, and their optimizers.

Both are saved as flat dicts under the names of the module, so that they fit any world size. The state of an optimizer
depends on its steps: a parameter without a gradient so far has none. So the template for loading follows the saved
keys, not the state of the new optimizer.
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
"""The prefixes of the keys of an optimizer; the name of a parameter, a dot and the name of the value follow."""

_WRAPPERS: Final = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module)(?=\.)")
"""Names that torch.compile and activation checkpointing insert into the names of parameters."""


class SavedTensor(NamedTuple):
    """A saved tensor: its global shape and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Template = Callable[[Mapping[str, SavedTensor | None]], dict[str, Any]]
"""Returns the dict to fill, given the saved tensors by key; None is a plain value."""


class ShardedPart(Protocol):
    """A component whose tensors are shards."""

    def template(self, saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
        """Return a dict with tensors to fill, sharded for this world size."""


class ShardedModule:
    """A module whose parameters are DTensors."""

    sharded = True

    def __init__(self, module: torch.nn.Module) -> None:
        """`module` is the result of `fully_shard`."""
        self.module = module

    def take(self) -> dict[str, Any]:
        """Return parameters and buffers by name, as DTensors with the shards of this rank."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return dict(get_model_state_dict(self.module))

    def template(self, saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
        """Return the tensors of the module, whatever was saved."""
        return self.take()

    def put(self, state: dict[str, Any]) -> None:
        """Load shards of this world size, or the full tensors of a module that was saved unsharded."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        whole = is_sharded(self.module.parameters()) and not is_sharded(state.values())
        set_model_state_dict(self.module, state, options=StateDictOptions(full_state_dict=whole))


class ShardedOptimizer:
    """The optimizer of a sharded module: moments as DTensors, settings as values, by parameter name."""

    sharded = True

    def __init__(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """`module` has the parameters of `optimizer`."""
        self.module = module
        self.optimizer = optimizer

    def take(self) -> dict[str, Any]:
        """Return the state of each parameter, and the settings of its group."""
        names = self._names()
        entries: dict[str, Any] = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                entries |= {f"{SETTINGS}{name}.{key}": value for key, value in group.items() if key != "params"}
                state = self.optimizer.state.get(parameter, {})  # [] would create an empty entry.
                entries |= {f"{STATE}{name}.{key}": value for key, value in state.items()}
        flat: dict[str, Any] = without_numpy(entries)
        return flat

    def template(self, saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
        """Return a tensor for each saved one: sharded like its parameter if the shapes match, otherwise unsharded."""
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
        """Load the filled template. Raises `ValueError` if it belongs to an optimizer of other parameters."""
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
            f"{who} lacks {', '.join(sorted(names))}"
            for who, names in (("this optimizer", saved - known), ("the checkpoint", known - saved))
            if names
        ]
        if wrong:
            raise ValueError(f"the saved optimizer has other parameters: {', and '.join(wrong)}")
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        names = self._names()
        return {names[id(item)]: item for group in self.optimizer.param_groups for item in group["params"]}

    def _names(self) -> dict[int, str]:
        """Return the name of each parameter in the bare module, by its `id`."""
        return {id(item): _WRAPPERS.sub("", name).lstrip(".") for name, item in self.module.named_parameters()}


def is_sharded(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether any of them is a DTensor."""
    return any(map(is_dtensor, tensors))


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor, without importing the module of DTensor."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return False
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)  # Without the module, or while a thread imports it, there are no DTensors.
    return kind is not None and isinstance(tensor, kind)


def _parted(key: str) -> tuple[str, str]:
    """Split a key into the name of the parameter and the name of the value."""
    name, _, what = key.removeprefix(STATE).removeprefix(SETTINGS).rpartition(".")
    return name, what
