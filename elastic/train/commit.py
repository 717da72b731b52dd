"""What a state does when a commit is due: to memory, to disk, and the planned stop."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from elastic.channel.client import ChannelClient
from elastic.channel.messages import CheckpointSaved, PlannedStopRequest, SavedAndLeaving, truncate_text
from elastic.errors import CheckpointError
from elastic.train import nan_check, report
from elastic.train.checkpoint import shared_folder
from elastic.train.checkpoint.async_saver import AsyncSaver
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.comm import byte_collectives
from elastic.train.memory.tier import MemoryTier
from elastic.train.process_group import shutdown, stop_agreement
from elastic.train.process_group.topology import Topology, current_topology, host
from elastic.train.restore import choose_checkpoint
from elastic.train.restore.restorer import Restorer, RestoreResult
from elastic.train.statedict import rng, tree
from elastic.train.statedict.parts import StatePart, on_its_device, without_numpy

LEAVING: Final = 143
"""Exit code of a worker that left in a planned stop: that of a process that SIGTERM ended."""


@dataclass(slots=True)
class StateData:
    """What a state and its `Committer` share: the plain values, the number of steps done, and the epoch."""

    values: dict[str, Any]
    step: int = 0
    epoch: int = 0


class Siblings(NamedTuple):
    """What a `Committer` asks about the other states of its script.

    `check_alone` raises ConfigError if another state uses the same folder; `save_others` saves the last steps of the
    others; `is_missed` tells whether the newest checkpoint of this state is the one that the job knows of.
    """

    check_alone: Callable[[], None]
    save_others: Callable[[], None]
    is_missed: Callable[[], bool]


class Committer:
    """A state's way to memory and disk in one world."""

    def __init__(
        self,
        data: StateData,
        siblings: Siblings,
        parts: Mapping[str, StatePart],
        things: Mapping[str, Any],
        end: ChannelClient | None,
        *,
        folder: str | os.PathLike[str] | None,
        keep: int,
        memory_copies: int,
        owner: str = "",
        others: Collection[str] = (),
    ) -> None:
        """A collective: it may make a process group of its own.

        `owner` is the beginning of its memory's names, and `others` are the folders of other states of the script.
        """
        self.saves = False
        """Whether the script ever asks for checkpoints on disk."""
        self.remembers = False
        """Whether it ever asks for copies in memory."""
        self._data = data
        self._siblings = siblings
        self._parts = parts
        self._things = things
        self._end = end
        self._ordered = [thing for thing in things.values() if hasattr(thing, "set_epoch")]
        self._places = [thing for thing in self._ordered if hasattr(thing, "keep")]
        self._others = others
        self._here: Topology = current_topology(sharded=any(part.sharded for part in parts.values()))
        self._checkpoints = Checkpoints(folder, keep=keep, rank=self._here.rank)
        self.checks = nan_check.enabled(os.environ)
        """Whether every commit looks at all tensors and at the loss (--check_nan)."""
        self._saved_step = -1
        self._kept_step = -1
        """What people can go back to: the newest step on disk."""
        self._handled = sys.exc_info()[1]
        """The exception in whose handler the whole script runs, if any."""
        self._told_shared = False
        self._shared = True
        """Whether every host sees the same folder; known after the first save at the latest."""
        self._heard = False
        self._board: stop_agreement.StopBoard | None = None
        place = self._here
        self._saver = AsyncSaver(self._checkpoints, place.background, on_saved=self._say_saved)
        self._memory = MemoryTier(
            end,
            rank=place.rank,
            local_rank=place.local_rank,
            world_size=place.world_size,
            local_world_size=place.local_world_size,
            mark=os.environ.get("ELASTIC_FENCE", ""),
            group=place.group,
            copies=memory_copies,
            owner=owner,
        )

    # Restoring.

    def restore(
        self, *, step: int | None, resume_from: str | os.PathLike[str] | None, allow_rollback: bool | None
    ) -> bool:
        """Bring every rank to the same step; False if training starts anew."""
        restorer = Restorer(self._here, self._checkpoints, self._memory, self._parts, self._end, others=self._others)
        restored = restorer.run(step=step, resume_from=resume_from, allow_rollback=allow_rollback)
        self._told_shared = restorer.shared
        self._take_over(restored)
        restorer.ready()
        return restored.step >= 0

    def _take_over(self, restored: RestoreResult) -> None:
        data, place = self._data, self._here
        origin = "what --resume_from names" if restored.warm else f"the checkpoint of step {restored.step}"
        for name in _in_order(self._parts):
            if restored.warm and hasattr(self._things[name], "set_epoch"):
                continue  # Another run's place in its data is not ours, nor need the data be the same.
            if name in restored.parts:
                try:
                    self._parts[name].put(restored.parts[name])
                except Exception as error:
                    error.add_note(f"elastic: this was part {name} of {origin}")
                    raise
        line = choose_checkpoint.other_parts(origin, self._parts, restored.parts) if restored.step >= 0 else ""
        if line and place.rank == 0:
            report.log_to_agent(line, warn=True)
        values = restored.values
        saved = {name: value for name, value in values.get("values", {}).items() if name not in self._parts}
        data.values.update(on_its_device(saved, data.values))
        data.step, data.epoch = int(values.get("step", 0)), int(values.get("epoch", 0))
        self._kept_step = restored.newest
        if restored.step >= 0 and not restored.warm:
            self._saved_step = data.step if restored.on_disk else -1
            if restored.random is not None:
                self._restore_random(restored.random)
            else:
                rng.derive(self._seed(), rank=place.rank, step=data.step)
        self._apply_batches()
        if self.checks:
            for thing in self._things.values():
                if _is_module(thing):
                    nan_check.watch(thing, lambda: data.step + 1, place.rank)

    def _restore_random(self, random: dict[str, Any]) -> None:
        """Now, and again once the loop goes on: a DataLoader draws a seed when its loop begins.

        In a run without a break it did so before the commit, not after it.
        """
        rng.restore(random)
        left = [random]

        def again() -> None:
            while left:
                rng.restore(left.pop())

        for thing in self._ordered:
            if getattr(thing, "consumed", 0) and hasattr(thing, "at_next_loop"):
                thing.at_next_loop(again)

    def _apply_batches(self) -> None:
        """Batches that grow with the world bring the learning rates along."""
        optimizers = [thing for thing in self._things.values() if hasattr(thing, "param_groups")]
        schedulers = [thing for thing in self._things.values() if hasattr(thing, "get_last_lr")]
        for thing in self._things.values():
            if hasattr(thing, "apply") and hasattr(thing, "weigh"):
                thing.apply(optimizers, schedulers)

    def _seed(self) -> int:
        return next((int(thing.seed) for thing in self._ordered if hasattr(thing, "seed")), 0)

    # Epochs.

    def on_step_committed(self) -> None:
        """A step was committed: the batches taken so far belong to it."""
        for thing in self._places:
            thing.keep()

    def set_epoch(self, epoch: int) -> None:
        """Tell samplers and streams which epoch it is."""
        for thing in self._ordered:
            thing.set_epoch(epoch)

    # Keeping.

    def save_due(self, step: int, *, disk: bool, memory: bool, word: PlannedStopRequest | None, loss: Any) -> None:
        """Do what is due at a commit."""
        leave = word is not None and self._agreed(step)
        disk, memory = disk or leave, (memory or (leave and self.remembers)) and self._memory.on
        if not (disk or memory or self.checks):
            return
        self._siblings.check_alone()
        replicated, sharded = self._take(step)
        if self.checks:
            nan_check.check_commit(
                {**replicated, **sharded}, loss, step=step, rank=self._here.rank, kept_step=self._kept_step
            )
        own = {"rng": rng.capture()}
        if memory:
            self._memory.commit(step, replicated, own, sharded)
        if leave:
            self._siblings.save_others()
            self._saver.wait()
        if disk:
            self._to_disk(step, replicated, own, sharded)
        if leave:
            assert word is not None
            if not memory and not self._shared and self._memory.on:  # The node that has saved may be the one that goes.
                self._memory.commit(step, replicated, own, sharded)
            self._leave(step, word)

    def save_now(self, step: int) -> None:
        """Save a step to disk, unless it was, and wait until it is there."""
        self._saver.wait()
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and error.code == LEAVING:
            return  # The step was saved before the planned stop.
        if not (self._here.alone or error is self._handled or isinstance(error, SystemExit | None)):
            if self._saved_step != step:
                report.log_to_agent(
                    f"step {step} is not saved on the way out of {type(error).__name__}: rank {self._here.rank} would "
                    "wait for ranks that are elsewhere; what was saved before stays",
                    warn=True,
                )
            return
        missing = b"" if self._saved_step == step else b"missing"  # Rank 0 alone may know that a save failed.
        if any(byte_collectives.gather(missing, self._here.group)):
            self._siblings.check_alone()
            replicated, sharded = self._take(step)
            if self.checks:
                nan_check.check_commit(
                    {**replicated, **sharded}, None, step=step, rank=self._here.rank, kept_step=self._kept_step
                )
            self._to_disk(step, replicated, {"rng": rng.capture()}, sharded)
        self._saver.wait()

    def finish(self, step: int) -> None:
        """The end of training: save the last step if the script saves at all."""
        if self.saves:
            self.save_now(step)
        else:
            self._saver.wait()

    def _take(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """All parts as they are now: what is the same on all ranks, and what is sharded."""
        taken = {name: part.take() for name, part in self._parts.items()}
        known = without_numpy(dict(self._data.values))  # Lists in it may have grown since they were given.
        values = {"step": step, "epoch": self._data.epoch, "values": known}
        replicated = {name: one for name, one in taken.items() if not self._parts[name].sharded}
        return {**replicated, "values": values}, {name: taken[name] for name in taken if self._parts[name].sharded}

    def _to_disk(self, step: int, replicated: dict[str, Any], own: dict[str, Any], sharded: dict[str, Any]) -> None:
        self._saved_step = -1
        everybody = byte_collectives.gather(tree.pack(own["rng"]), self._here.group)

        def random() -> dict[str, Any]:
            ranks = {str(rank): tree.unpack(data) for rank, data in enumerate(everybody)}
            return {"rng": {"world": self._here.world_size, "ranks": ranks}}

        self._saver.start(step, replicated, sharded, also=random)
        self._saved_step = self._kept_step = step
        if not self._told_shared:
            self._told_shared = True
            self._check_shared_folder()

    def _check_shared_folder(self) -> None:
        """Find out at the first save whether every host sees the same folder, and say it if not."""
        place, folder = self._here, self._checkpoints.folder
        if place.alone:
            return
        token = ""
        if place.rank == 0:
            with contextlib.suppress(CheckpointError):  # The save itself says the same.
                token = shared_folder.write_token(folder)
        token = byte_collectives.broadcast(token.encode() if place.rank == 0 else None, 0, place.group).decode()
        if not token:
            return
        words = [host(), str(folder.absolute()), str(int(shared_folder.sees_token(folder, token)))]
        reports = [
            reply.decode().split("\n") for reply in byte_collectives.gather("\n".join(words).encode(), place.group)
        ]
        blind = [(host, where) for host, where, sees in reports if sees == "0"]
        self._shared = not blind
        if place.rank == 0:
            shared_folder.remove_token(folder, token)
            if blind:
                report.log_to_agent(shared_folder.not_shared(reports[0][0], folder.absolute(), blind), warn=True)

    def _say_saved(self, step: int, folder: Any) -> None:
        """From the saver's thread: a checkpoint is complete."""
        if self._end is not None and self._siblings.is_missed():
            self._end.send(CheckpointSaved(step, truncate_text(str(folder))))

    # The planned stop.

    def _agreed(self, step: int) -> bool:
        """Whether all ranks stop at this step."""
        place = self._here
        if place.alone:
            return True
        if self._board is None:
            from torch.distributed.distributed_c10d import _get_default_store

            self._board = stop_agreement.StopBoard(_get_default_store(), place.world_size)
        rules = stop_agreement.at_commit(step, place.world_size, first=not self._heard)
        self._heard = True
        return self._board.run(rules) is stop_agreement.CommitVerdict.STOP

    def _leave(self, step: int, word: PlannedStopRequest) -> None:
        self._saver.wait()
        if self._end is not None:
            self._end.send(SavedAndLeaving(step))
        if self._board is not None:
            self._board.leave(self._here.rank, self._here.world_size)
            shutdown.mark_gil_released_wait()
        if self._here.rank == 0:
            report.log_to_agent(f"step {step} is saved; the workers leave: {word.reason}")
        raise SystemExit(LEAVING)


def _in_order(parts: Mapping[str, StatePart]) -> list[str]:
    """Modules before optimizers before the rest: each may look at the one before."""
    import torch

    def weight(name: str) -> int:
        part = parts[name]
        if hasattr(part, "optimizer") or isinstance(getattr(part, "thing", None), torch.optim.Optimizer):
            return 1
        return 0 if _is_module(getattr(part, "module", None) or getattr(part, "thing", None)) else 2

    return sorted(parts, key=weight)


def _is_module(thing: Any) -> bool:
    import torch

    return isinstance(thing, torch.nn.Module)
