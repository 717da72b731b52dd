"""The contents of a `State`, for the modules that save and restore it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from elastic.train.data.tracked import TrackedData
from elastic.train.statedict import parts
from elastic.train.statedict.parts import StatePart


class StateData:
    """The components and plain values of a state, its number of committed steps, and its epoch."""

    def __init__(self, things: Mapping[str, Any]) -> None:
        """Sort `things` into components and plain values. Raises `ConfigError` for one that could not be restored."""
        self.parts: dict[str, StatePart] = parts.make(things)
        self.values = {name: parts.plain(name, thing) for name, thing in things.items() if name not in self.parts}
        self.things = {name: things[name] for name in self.parts}
        self.loaders = TrackedData(self.things.values())
        self.step = 0
        self.epoch = 0

    @property
    def sharded(self) -> bool:
        """Whether any component is sharded."""
        return any(part.sharded for part in self.parts.values())

    @property
    def modules(self) -> Iterator[torch.nn.Module]:
        """The modules of the state, as the script passed them."""
        return (thing for thing in self.things.values() if isinstance(thing, torch.nn.Module))

    def take(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the current state: the replicated trees, including "values", and the sharded trees, by name."""
        replicated: dict[str, Any] = {}
        sharded: dict[str, Any] = {}
        for name, part in self.parts.items():
            (sharded if part.sharded else replicated)[name] = part.take()
        known = parts.without_numpy(dict(self.values))  # The script may have changed lists in it since.
        return {**replicated, "values": {"step": self.step, "epoch": self.epoch, "values": known}}, sharded
