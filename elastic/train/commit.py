"""What a state does when a commit is due: a copy in memory, a checkpoint on disk, and the planned stop."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from elastic.channel.client import ChannelClient
from elastic.channel.messages import CheckpointSaved, PlannedStopRequest, truncate_text
from elastic.train import nan_check, report
from elastic.train.checkpoint import shared_folder
from elastic.train.checkpoint.async_saver import AsyncSaver
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.comm import byte_collectives
from elastic.train.memory.tier import MemoryTier
from elastic.train.planned_stop import LEAVING, StopParticipant
from elastic.train.process_group.topology import Topology, host
from elastic.train.resume import Resumed
from elastic.train.siblings import Sibling
from elastic.train.state_data import StateData
from elastic.train.statedict import rng, tree


class Committer:
    """A state's way to memory and disk in one world."""

    def __init__(
        self,
        data: StateData,
        sibling: Sibling,
        place: Topology,
        checkpoints: Checkpoints,
        memory: MemoryTier,
        channel: ChannelClient | None,
        resumed: Resumed,
    ) -> None:
        """`resumed` is what the state was restored from."""
        self._data = data
        self.sibling = sibling
        self._place = place
        self._checkpoints = checkpoints
        self._memory = memory
        self._channel = channel
        self._saver = AsyncSaver(checkpoints, place.background, on_saved=self._say_saved)
        self._stop = StopParticipant(place, channel)
        self._checks = nan_check.enabled(os.environ)
        """Whether every commit looks at all tensors and at the loss (--check_nan)."""
        self._saves = False
        """Whether the script ever asks for checkpoints on disk."""
        self._remembers = False
        """Whether it ever asks for copies in memory."""
        self._saved_step = resumed.saved_step
        self._kept_step = resumed.newest_step
        """What people can go back to: the newest step on disk."""
        self._handled = sys.exc_info()[1]
        """The exception in whose handler the whole script runs, if any."""
        self._knows_shared = resumed.shared
        self._shared = True
        """Whether every host sees the same folder; known after the first save at the latest."""
        if self._checks:
            for module in data.modules:
                nan_check.watch(module, lambda: data.step + 1, place.rank)

    def commit(
        self, step: int, every: int | None, memory_every: int | None, loss: Any, request: PlannedStopRequest | None
    ) -> None:
        """Do what follows a step: save it if `every` or `memory_every` divides it, and stop if that was requested."""
        disk = memory = False
        if every:
            self._saves = True
            disk = step % every == 0
        if memory_every:
            self._remembers = True
            memory = step % memory_every == 0
        if disk or memory or request is not None or self._checks:
            self._keep(step, loss, request, disk=disk, memory=memory)

    def save(self, step: int) -> None:
        """Save a step to disk, unless it was, and wait until it is there."""
        self._saver.wait()
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and error.code == LEAVING:
            return  # The step was saved before the planned stop.
        if not (self._place.alone or error is self._handled or isinstance(error, SystemExit | None)):
            if self._saved_step != step:
                report.log_to_agent(
                    f"step {step} is not saved on the way out of {type(error).__name__}: rank {self._place.rank} would "
                    "wait for ranks that are elsewhere; what was saved before stays",
                    warn=True,
                )
            return
        missing = b"" if self._saved_step == step else b"missing"  # Rank 0 alone may know that a save failed.
        if any(byte_collectives.gather(missing, self._place.group)):
            self._to_disk(step, *self._take(step, None))
        self._saver.wait()

    def finish(self, step: int) -> None:
        """The end of training: save the last step if the script saves at all."""
        if self._saves:
            self.save(step)
        else:
            self._saver.wait()

    def _keep(self, step: int, loss: Any, request: PlannedStopRequest | None, *, disk: bool, memory: bool) -> None:
        leave = request is not None and self._stop.agreed(step)
        disk = disk or leave
        memory = (memory or (leave and self._remembers)) and self._memory.on
        if not (disk or memory or self._checks):
            return
        replicated, own, sharded = self._take(step, loss)
        if memory:
            self._memory.commit(step, replicated, own, sharded)
        if leave:
            self.sibling.save_others()
            self._saver.wait()
        if disk:
            self._to_disk(step, replicated, own, sharded)
        if request is not None and leave:
            if not memory and not self._shared and self._memory.on:  # The node that has saved may be the one that goes.
                self._memory.commit(step, replicated, own, sharded)
            self._saver.wait()
            self._stop.leave(step, request.reason)

    def _take(self, step: int, loss: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """All as it is now, checked if that is asked for: what all ranks have alike, this rank's own, and shards."""
        self.sibling.require_own_folder()
        replicated, sharded = self._data.take()
        if self._checks:
            nan_check.check_commit(
                {**replicated, **sharded}, loss, step=step, rank=self._place.rank, kept_step=self._kept_step
            )
        return replicated, {"rng": rng.capture()}, sharded

    def _to_disk(self, step: int, replicated: dict[str, Any], own: dict[str, Any], sharded: dict[str, Any]) -> None:
        self._saved_step = -1
        everybody = byte_collectives.gather(tree.save(own["rng"]), self._place.group)

        def random() -> dict[str, Any]:
            ranks = {str(rank): tree.load(data) for rank, data in enumerate(everybody)}
            return {"rng": {"world": self._place.world_size, "ranks": ranks}}

        self._saver.start(step, replicated, sharded, also=random)
        self._saved_step = self._kept_step = step
        if not self._knows_shared and not self._place.alone:
            self._knows_shared = True
            rank, group = self._place.rank, self._place.group
            why = shared_folder.why_not_shared(self._checkpoints.folder, host=host(), rank=rank, group=group)
            self._shared = not why
            if why and rank == 0:
                report.log_to_agent(why, warn=True)

    def _say_saved(self, step: int, folder: Path) -> None:
        """From the saver's thread: a checkpoint is complete."""
        if self._channel is not None and self.sibling.is_the_jobs:
            self._channel.send(CheckpointSaved(step, truncate_text(str(folder))))
