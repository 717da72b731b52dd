"""The work of a commit: the in-memory checkpoint, the checkpoint on disk, and the planned stop."""

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
    """Saves a state to memory and disk in one generation, and stops it as planned."""

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
        """Whether every commit checks all tensors and the loss (--check-nan)."""
        self._saves = False
        """Whether a commit has ever had `every`."""
        self._remembers = False
        """Whether a commit has ever had `memory_every`."""
        self._saved_step = resumed.saved_step
        self._kept_step = resumed.newest_step
        """The newest step on disk, which people can roll back to."""
        self._handled = sys.exc_info()[1]
        """The exception in whose handler the whole script runs, if any."""
        self._knows_shared = resumed.shared
        self._shared = True
        """Whether all hosts see the same directory; known after the first save at the latest."""
        if self._checks:
            for module in data.modules:
                nan_check.watch(module, lambda: data.step + 1, place.rank)

    def commit(
        self, step: int, every: int | None, memory_every: int | None, loss: Any, request: PlannedStopRequest | None
    ) -> None:
        """Save the step if `every` or `memory_every` divides it, and take part in a requested planned stop.

        Raises `CheckpointError`, `NotFinite`, and SystemExit(143) at the agreed step of a planned stop.
        """
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
        """Save a step to disk, unless it is saved already, and wait for the checkpoint."""
        self._saver.wait()
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit) and error.code == LEAVING:
            return  # The step was saved before the planned stop.
        if not (self._place.alone or error is self._handled or isinstance(error, SystemExit | None)):
            if self._saved_step != step:
                report.log_to_agent(
                    f"did not save step {step} while {type(error).__name__} propagates: rank {self._place.rank} would "
                    "wait for ranks that never join the save; earlier checkpoints are unchanged",
                    warn=True,
                )
            return
        missing = b"" if self._saved_step == step else b"missing"  # Rank 0 alone may know that a save failed.
        if any(byte_collectives.gather(missing, self._place.group)):
            self._to_disk(step, *self._take(step, None))
        self._saver.wait()

    def finish(self, step: int) -> None:
        """Save the last step if any commit had `every`, and wait for the checkpoint."""
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
            if not memory and not self._shared and self._memory.on:  # The saving node may leave.
                self._memory.commit(step, replicated, own, sharded)
            self._saver.wait()
            self._stop.leave(step, request.reason)

    def _take(self, step: int, loss: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the replicated components, those of this rank, and the shards, checked if --check-nan asks for it."""
        self.sibling.require_own_folder()
        replicated, sharded = self._data.take()
        if self._checks:
            nan_check.check_commit(
                {**replicated, **sharded}, loss, step=step, rank=self._place.rank, kept_step=self._kept_step
            )
        return replicated, {"rng": rng.capture()}, sharded

    def _to_disk(self, step: int, replicated: dict[str, Any], own: dict[str, Any], sharded: dict[str, Any]) -> None:
        self._saved_step = -1
        rng_of_ranks = byte_collectives.gather(tree.save(own["rng"]), self._place.group)

        def random() -> dict[str, Any]:
            ranks = {str(rank): tree.load(data) for rank, data in enumerate(rng_of_ranks)}
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
        """Report a complete checkpoint to the agent; runs in the saver's thread."""
        if self._channel is not None and self.sibling.is_the_jobs:
            self._channel.send(CheckpointSaved(step, truncate_text(str(folder))))
