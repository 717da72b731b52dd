"""What `State.restore` does: all ranks agree on a checkpoint, and each part takes up what was saved of it."""

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

    `saved_step` is the step of the state as it is on disk, -1 if it is not there; `newest_step` that of the newest
    checkpoint on disk, -1 if there is none. `shared`: it is known that all ranks see one folder.
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
    """Bring every rank to the same step. A collective.

    Raises `CheckpointError` on all ranks, `RestoreUnrecoverable` where another start would find the same.
    """
    restorer = Restorer(place, checkpoints, memory, data.parts, channel, others=others)
    result = restorer.run(step=step, resume_from=resume_from, allow_rollback=allow_rollback)
    _take_over(data, result, place)
    restorer.ready()
    restored = result.step >= 0
    on_disk = restored and result.on_disk and not result.warm
    return Resumed(restored, data.step if on_disk else -1, result.newest, restorer.shared)


def _take_over(data: StateData, result: RestoreResult, place: Topology) -> None:
    origin = "what --resume_from names" if result.warm else f"the checkpoint of step {result.step}"
    for name in sorted(data.parts, key=lambda name: _rank(data.things[name])):
        if result.warm and hasattr(data.things[name], "set_epoch"):
            continue  # Another run's place in its data is not ours, nor need the data be the same.
        if name in result.parts:
            try:
                data.parts[name].put(result.parts[name])
            except Exception as error:
                error.add_note(f"elastic: this was part {name} of {origin}")
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
    """Modules come before optimizers, and these before the rest: each may look at the ones before."""
    return 0 if isinstance(thing, torch.nn.Module) else 1 if isinstance(thing, torch.optim.Optimizer) else 2


def _restore_random(data: StateData, random: dict[str, Any]) -> None:
    """Restore it now, and again when the loop begins: a DataLoader draws a seed then.

    In a run without a break it did so before the commit, not after it.
    """
    rng.restore(random)
    left = [random]

    def again() -> None:
        while left:
            rng.restore(left.pop())

    data.loaders.at_next_loop(again)
