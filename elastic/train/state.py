"""`elastic.State`: the state of a training script that survives restarts.

It works under elastic-launch, under torchrun, and in a plain `python train.py`. Only elastic-launch requests planned
stops and provides memory that outlives a worker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, Final

from elastic.channel.client import ChannelClient
from elastic.channel.messages import FirstCommit, RestoreDone, clock
from elastic.errors import CheckpointError, ConfigError, RestoreRefused, RestoreUnrecoverable
from elastic.script.error_report import report_error, reporting_config_errors
from elastic.train import report
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.commit import Committer
from elastic.train.data.tracked import with_batches
from elastic.train.memory.tier import MemoryTier
from elastic.train.process_group.topology import current_topology
from elastic.train.resume import resume
from elastic.train.siblings import Sibling, job_folder
from elastic.train.state_data import StateData
from elastic.train.statedict import parts

RESERVED: Final = frozenset({"commit", "epoch", "finish", "restore", "rng", "save", "step", "values"})
"""Names that a component or a plain value cannot have."""


class State:
    """Components and plain values that are restored together, committed after each step, and saved to memory and disk.

    ::

        state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, best=0.0)
        state.restore()                                   # every rank, once
        for epoch in elastic.epochs(state, 30):
            for batch in loader:
                ...
                state.best = max(state.best, accuracy)    # a plain value is an attribute
                state.commit(every=50, memory_every=1)    # every rank, after each step

    Modules may be wrapped (DDP, torch.compile) or sharded (FSDP2). The state also includes the RNG state of Python,
    NumPy and torch. `restore` restores it for each rank if the world size is the same; otherwise it derives new RNG
    states from seed, rank and step.

    Everything that is not sharded must be the same on all ranks: after a restore every rank has the values of rank 0.
    Reduce a value over the ranks before you store it. A sampler's `GlobalBatch` is saved with the sampler, and
    `restore` adjusts the learning rates that it scales.

    Args:
        **things: The components and plain values, by name. A component has `state_dict` and `load_state_dict`: modules,
            optimizers, schedulers, samplers. Anything else is a plain value: a number, a string, None, a tensor, or a
            list or dict of them. The names commit, epoch, finish, restore, rng, save, step and values are reserved.

    Raises:
        ConfigError: A name is reserved, or a component or value cannot be saved and loaded.
    """

    def __init__(self, **things: Any) -> None:
        with reporting_config_errors():
            for name in things:
                if name in RESERVED or name.startswith("_"):
                    raise ConfigError(f"elastic.State: {name!r} is reserved; use another name")
                if not name.isidentifier():  # Files of the checkpoint are named after parts.
                    better = re.sub(r"\W", "_", name)
                    raise ConfigError(f"elastic.State: {name!r} is not a valid Python name; write {better!r}")
            self._data = StateData(with_batches(things))
        self._committer: Committer | None = None
        self._channel: ChannelClient | None = None
        self._first = True
        self._epochs: int | None = None
        """The number of epochs of the running loop over `elastic.epochs`; None outside a loop."""

    @property
    def step(self) -> int:
        """The number of steps committed so far, including those before restarts."""
        return self._data.step

    @property
    def epoch(self) -> int:
        """The current epoch of `elastic.epochs`, from 0; after the loop, the number of epochs."""
        return self._data.epoch

    def restore(
        self,
        *,
        step: int | None = None,
        resume_from: str | os.PathLike[str] | None = None,
        allow_rollback: bool | None = None,
        folder: str | os.PathLike[str] | None = None,
        keep: int = 3,
        memory_copies: int = 1,
    ) -> bool:
        """Resume from the newest complete checkpoint.

        This is a collective: every rank calls it once, after `elastic.init()` and before the first step. All ranks
        load the same step: the newest that any of them can read, from memory or from disk.

        Args:
            step: Roll back to this step. Overrides --restore-step.
            resume_from: If nothing has been saved yet, warm-start from this checkpoint or file. Overrides
                --resume-from.
            allow_rollback: Accept a step older than the newest committed one. Overrides --allow-rollback.
            folder: The checkpoint directory. Overrides --checkpoint-dir.
            keep: The number of checkpoints that stay on disk.
            memory_copies: The number of other nodes that hold a copy of each shard in memory, which is the number of
                nodes that may fail at once. Every node holds the components that are not sharded anyway.

        Returns:
            True if the state was restored; False if there is no checkpoint, and training starts at step 0.

        Raises:
            ConfigError: `restore` was called before, an argument is wrong, or the process group is not initialized.
            RestoreRefused: No rank can read a step as new as the newest committed one, or every checkpoint is damaged.
                The message says what to do. If nothing catches the error, the script exits with code 1 and without a
                stack trace.
        """
        with reporting_config_errors():
            if self._committer is not None:
                raise ConfigError("state.restore() was called twice; call it once, before the first step")
            for name, part in self._data.parts.items():
                parts.require_values(name, part)
            own_folder = os.path.abspath(folder) if folder else job_folder()
            sibling = Sibling(self, own_folder)
            self._channel = channel = report.end()
            place = current_topology(sharded=self._data.sharded)
            checkpoints = Checkpoints(folder, keep=keep, rank=place.rank)
            memory = MemoryTier(
                channel,
                rank=place.rank,
                local_rank=place.local_rank,
                world_size=place.world_size,
                local_world_size=place.local_world_size,
                mark=os.environ.get("ELASTIC_FENCE", ""),
                group=place.group,
                copies=memory_copies,
                owner=sibling.prefix,
            )
            try:
                resumed = resume(
                    self._data,
                    place,
                    checkpoints,
                    memory,
                    channel,
                    others={job_folder(), *(other.folder for other in sibling.others)} - {own_folder},
                    step=step,
                    resume_from=resume_from,
                    allow_rollback=allow_rollback,
                )
            except CheckpointError as error:
                unrecoverable = isinstance(error, RestoreUnrecoverable)
                raise RestoreRefused(
                    report_error(error, code=RestoreRefused.exit_code, unrecoverable=unrecoverable)
                ) from error
            self._committer = Committer(self._data, sibling, place, checkpoints, memory, channel, resumed)
        if channel is not None:
            channel.send(RestoreDone(self._data.step if resumed.restored else -1, clock()))
        return resumed.restored

    def commit(
        self,
        *,
        every: int | None = None,
        memory_every: int | None = None,
        loss: Any = None,
        total: int | None = None,
    ) -> None:
        """Commit a finished step, and save it at the given intervals. Every rank calls it after each step.

        It increases `step` by one. If a planned stop is requested, all ranks stop at an agreed step: `commit` saves
        that step and raises SystemExit(143). Write the results of a step before you commit it. A commit that saves
        nothing takes microseconds.

        Args:
            every: Save a checkpoint to disk, in the background, at each multiple of this number of steps. None or 0:
                never.
            memory_every: Save a checkpoint to the memory of every node at each multiple of this number of steps. It
                survives the workers, and node failures as long as one node remains. None or 0: never.
            loss: The training loss: a number, or a tensor with one element. The progress display shows the loss of
                rank 0, and --check-nan checks it on every rank.
            total: The number of steps of the whole training, if `elastic.epochs` and the sampler do not determine it.

        Raises:
            ConfigError: `restore` was not called before, or an interval is not a whole number of steps.
            CheckpointError: This save or the previous one could not be written. Earlier checkpoints are unchanged.
            NotFinite: With --check-nan: a tensor or the loss is NaN or Inf.
            SystemExit: A planned stop: the step is saved, and the worker exits with code 143.
        """
        committer = self._committer
        if committer is None:
            with reporting_config_errors():
                raise ConfigError(
                    "state.commit() was called before state.restore(); call state.restore() once on every rank, "
                    "before the first step"
                )
            return
        if self._first:
            with reporting_config_errors():
                _check_every(every=every, memory_every=memory_every)
            committer.sibling.speak_up()
        data = self._data
        step = data.step = data.step + 1
        data.loaders.keep()
        channel, request = self._channel, None
        if channel is not None and committer.sibling.speaks:
            if self._first:
                channel.send(FirstCommit(clock()))
            report.reported(step, loss, self._total if total is None else total)
            request = channel.stop_asked()
        self._first = False
        committer.commit(step, every, memory_every, loss, request)

    def save(self) -> None:
        """Save the newest committed step to disk now, and wait until the checkpoint is complete. Every rank calls it.

        Call it right after a commit, or between epochs: it saves the current values. With several ranks it saves
        nothing while an exception propagates (`finally: state.save()`), because the other ranks would never join the
        save; a log message reports that.

        Raises:
            CheckpointError: The checkpoint could not be written. Earlier checkpoints are unchanged.
        """
        if self._committer is not None:
            self._committer.save(self._data.step)

    def finish(self) -> None:
        """Save the last step to disk, if commits used `every` and it is not saved yet, and wait for the checkpoint.

        `elastic.epochs` calls it after the last epoch. Every rank calls it.

        Raises:
            CheckpointError: The checkpoint could not be written. Earlier checkpoints are unchanged.
        """
        if self._committer is not None:
            self._committer.finish(self._data.step)

    def _total(self) -> int:
        """Return the expected number of steps of the whole training at this world size, 0 if unknown."""
        left = None if self._epochs is None else self._data.loaders.steps_left(self._epochs)
        return 0 if left is None else self._data.step + left

    def __getattr__(self, name: str) -> Any:
        """Return a component or a plain value by its name."""
        if not name.startswith("_"):
            if name in self._data.values:
                return self._data.values[name]
            if name in self._data.things:
                return self._data.things[name]
            raise AttributeError(
                f"this state has no {name!r}; it has {', '.join(sorted({*self._data.values, *self._data.things}))}"
            )
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a plain value, or add one, which is then saved and restored like the others."""
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name in RESERVED or name in self._data.things:
            raise AttributeError(f"cannot replace {name!r} of a state")
        else:
            with reporting_config_errors():
                self._data.values[name] = parts.plain(name, value)


def _check_every(**given: int | None) -> None:
    """Raise `ConfigError` for a value that is not a number of steps; None and 0 mean never."""
    for name, steps in given.items():
        if steps is not None and (not isinstance(steps, int) or steps < 0):
            raise ConfigError(f"state.commit({name}={steps!r}): write a whole number of steps, or leave it out")


def set_step(state: State, step: int, epoch: int | None = None) -> None:
    """Set the step of a restored state whose components were loaded from a checkpoint of a framework.

    `epoch`, if given, is the epoch at which `elastic.epochs` starts.
    """
    state._data.step = step
    if epoch is not None:
        state._data.epoch = epoch


def epochs(state: State, total: int) -> Iterator[int]:
    """Loop over the remaining epochs.

    It calls `set_epoch` of the state's samplers and streams. An interrupted epoch is entered again, and its loader
    yields the rest of it, which may be nothing. After the last epoch it saves the last step, if commits used `every`.

    Args:
        state: A restored state.
        total: The number of epochs of the whole training, 0 or more.

    Yields:
        The number of each remaining epoch, from 0 to `total - 1`.

    Raises:
        ConfigError: The state was not restored, or is already in a loop over epochs.
        ValueError: `total` is negative.
        CheckpointError: The last step could not be saved.
    """
    if total < 0:
        raise ValueError(f"epochs are 0 or more, not {total}")
    if state._committer is None:
        with reporting_config_errors():
            raise ConfigError("elastic.epochs() was called before state.restore()")
        return
    if state._epochs is not None:
        with reporting_config_errors():
            raise ConfigError(
                "elastic.epochs() was called within a loop over epochs of the same state; use range() for the inner "
                "loop"
            )
        return
    state._epochs, data = total, state._data
    try:
        while data.epoch < total:
            data.loaders.set_epoch(data.epoch)
            yield data.epoch
            data.epoch += 1
    finally:
        state._epochs = None
    state.finish()
