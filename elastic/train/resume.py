"""The work of `State.restore`: all ranks agree on a checkpoint, and each component loads its part of it."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from elastic.channel.client import ChannelClient
from elastic.train import report
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.memory.tier import MemoryTier
from elastic.train.process_group.topology import Topology
from elastic.train.restore import choose_checkpoint
from elastic.train.restore.restorer import Restorer, RestoreResult
from elastic.train.state_data import StateData
from elastic.train.statedict import rng
from elastic.train.statedict.parts import on_its_device


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the state was restored from.

    `saved_step` is the step of the state if that step is on disk, else -1; `newest_step` is that of the newest
    checkpoint on disk, -1 if there is none. `shared`: all ranks are known to see the same directory.
    """

    restored: bool
    saved_step: int
    newest_step: int
    shared: bool


def resume(
    data: StateData,
    place: Topology,
    checkpoints: Checkpoints,
    memory: MemoryTier,
    channel: ChannelClient | None,
    *,
    others: Collection[str],
    step: int | None,
    resume_from: str | os.PathLike[str] | None,
    allow_rollback: bool | None,
) -> Resumed:
    """Restore every rank to the same step; a collective.

    Raises `CheckpointError` on all ranks, and its subclass `RestoreUnrecoverable` if a restart would not help.
    """
    restorer = Restorer(place, checkpoints, memory, data.parts, channel, others=others)
    result = restorer.run(step=step, resume_from=resume_from, allow_rollback=allow_rollback)
    _take_over(data, result, place)
    restorer.ready()
    restored = result.step >= 0
    on_disk = restored and result.on_disk and not result.warm
    return Resumed(restored, data.step if on_disk else -1, result.newest, restorer.shared)


def _take_over(data: StateData, result: RestoreResult, place: Topology) -> None:
    origin = "the checkpoint of --resume-from" if result.warm else f"the checkpoint of step {result.step}"
    for name in sorted(data.parts, key=lambda name: _rank(data.things[name])):
        if result.warm and hasattr(data.things[name], "set_epoch"):
            continue  # The position is that of another run, whose data may be different.
        if name in result.parts:
            try:
                data.parts[name].put(result.parts[name])
            except Exception as error:
                error.add_note(f"elastic: the error is in component {name} of {origin}")
                raise
    line = choose_checkpoint.other_parts(origin, data.parts, result.parts) if result.step >= 0 else ""
    if line and place.rank == 0:
        report.log_to_agent(line, warn=True)
    saved = {name: value for name, value in result.values.get("values", {}).items() if name not in data.parts}
    data.values.update(on_its_device(saved, data.values))
    data.step, data.epoch = int(result.values.get("step", 0)), int(result.values.get("epoch", 0))
    if result.step >= 0 and not result.warm:
        if result.random is not None:
            _restore_random(data, result.random)
        else:
            rng.derive(data.loaders.seed, rank=place.rank, step=data.step)
    data.loaders.scale_learning_rates()


def _rank(thing: Any) -> int:
    """Order modules before optimizers, and these before the rest: a component may read those before it."""
    return 0 if isinstance(thing, torch.nn.Module) else 1 if isinstance(thing, torch.optim.Optimizer) else 2


def _restore_random(data: StateData, random: dict[str, Any]) -> None:
    """Restore the RNG state now, and again when the loop starts, because the DataLoader draws a seed then.

    In an uninterrupted run the DataLoader drew it before the commit.
    """
    rng.restore(random)
    left = [random]

    def again() -> None:
        while left:
            rng.restore(left.pop())

    data.loaders.at_next_loop(again)
