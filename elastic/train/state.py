"""What a training script wants to keep: `elastic.State`.

It works under elastic-launch, under torchrun, and in a plain `python train.py`. Only elastic-launch asks for planned
stops and has memory that outlives a worker.
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
"""Names that a part or a value cannot have."""


class State:
    """Parts and values that are restored together, committed after each step, and saved to memory and disk.

    ::

        state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, best=0.0)
        state.restore()                                   # every rank, once
        for epoch in elastic.epochs(state, 30):
            for batch in loader:
                ...
                state.best = max(state.best, accuracy)    # a plain value is an attribute
                state.commit(every=50, memory_every=1)    # every rank, after each step

    Modules may be wrapped (DDP, torch.compile) or sharded (FSDP2). The random state of python, numpy and torch is kept
    as well: restored by rank where the world has the same size, otherwise derived from seed, rank and step.

    Everything else is meant to be the same on all ranks: after a restore all of them have what rank 0 had. So reduce a
    value over the ranks before you keep it. The `GlobalBatch` of a sampler is kept together with the sampler, and the
    learning rates that it scales are brought up to date by `restore`.

    Args:
        **things: What to keep, by name. A thing with `state_dict` and `load_state_dict` is a part: modules, optimizers,
            schedulers, samplers. Anything else is a plain value: a number, a text, None, a tensor, or a list or dict of
            them. Reserved are the names commit, epoch, finish, restore, rng, save, step and values.

    Raises:
        ConfigError: A name is reserved, or a thing could not be loaded again.
    """

    def __init__(self, **things: Any) -> None:
        with reporting_config_errors():
            for name in things:
                if name in RESERVED or name.startswith("_"):
                    raise ConfigError(f"elastic.State: {name!r} is reserved; use another name")
                if not name.isidentifier():  # Files of the checkpoint are named after parts.
                    better = re.sub(r"\W", "_", name)
                    raise ConfigError(f"elastic.State: {name!r} is not a name as Python's are; write {better!r}")
            self._data = StateData(with_batches(things))
        self._committer: Committer | None = None
        self._channel: ChannelClient | None = None
        self._first = True
        self._epochs: int | None = None
        """How many epochs the loop over `elastic.epochs` has; None outside it."""

    @property
    def step(self) -> int:
        """The number of steps committed so far, in all worlds."""
        return self._data.step

    @property
    def epoch(self) -> int:
        """The epoch that `elastic.epochs` is in, from 0; after its loop the number of epochs."""
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
        """Continue from the newest checkpoint that is complete.

        A collective: every rank calls it once, after `elastic.init()` and before the first step. All ranks get the
        newest step that any of them can read, from memory or from disk.

        Args:
            step: Go back to this step; as --restore_step, which it overrides.
            resume_from: With nothing saved yet, start from this checkpoint or file; as --resume_from.
            allow_rollback: Accept an older step than the newest committed one; as --allow_rollback.
            folder: Where checkpoints lie; as --checkpoint_dir.
            keep: How many checkpoints stay on disk.
            memory_copies: On how many other nodes each shard of sharded parts is kept in memory, which is how many
                nodes may be lost at once. Replicated parts are in the memory of every node anyway.

        Returns:
            False if there was nothing to continue from, and training starts at step 0.

        Raises:
            CheckpointError: Nothing as new as the newest committed step can be read, or every checkpoint is damaged.
                The message says what to do.
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
        """Count a step that is done, and save it if its turn has come. Every rank calls it after each step.

        `step` grows by one. When a planned stop was requested, all ranks stop here at a common step: it is saved, and
        SystemExit(143) is raised. So write down what belongs to the step before you commit it. A commit that saves
        nothing costs microseconds.

        Args:
            every: A checkpoint goes to disk at each multiple of `every` steps, in the background. None: never.
            memory_every: A copy goes to the memory of every node at each multiple of these steps. It survives the
                workers, and lost nodes as long as one node remains. None: never.
            loss: For the progress line, which shows rank 0's, and for --check_nan: a number or a tensor of one element.
            total: The number of steps of the whole training, if `elastic.epochs` and the sampler do not tell it.

        Raises:
            CheckpointError: This save or the one before could not be written. Earlier checkpoints are untouched.
            NotFinite: With --check_nan: a tensor or the loss has nan or inf.
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
        """Save the newest committed step to disk now, and wait until it is there. Every rank calls it.

        Call it right after a commit, or between epochs: it saves everything as it is now. With several ranks nothing is
        saved while an exception is being raised (`finally: state.save()`), because the other ranks are elsewhere and
        would never join the save; a line says so.

        Raises:
            CheckpointError: It could not be written. Earlier checkpoints are untouched.
        """
        if self._committer is not None:
            self._committer.save(self._data.step)

    def finish(self) -> None:
        """Save the last step to disk if commits had `every` and it is not saved yet, and wait for it.

        `elastic.epochs` calls it at its end.
        """
        if self._committer is not None:
            self._committer.finish(self._data.step)

    def _total(self) -> int:
        """How many steps there will be in all, 0 if that is not known: in this world, with what is left of epochs."""
        left = None if self._epochs is None else self._data.loaders.steps_left(self._epochs)
        return 0 if left is None else self._data.step + left

    def __getattr__(self, name: str) -> Any:
        """A part, or a plain value."""
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
        """Change a plain value. A new name adds one, which is saved and restored like the others."""
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name in RESERVED or name in self._data.things:
            raise AttributeError(f"{name!r} of a state cannot be replaced")
        else:
            with reporting_config_errors():
                self._data.values[name] = parts.plain(name, value)


def _check_every(**given: int | None) -> None:
    """Raise `ConfigError` for what is no number of steps; None and 0 are never."""
    for name, steps in given.items():
        if steps is not None and (not isinstance(steps, int) or steps < 0):
            raise ConfigError(f"state.commit({name}={steps!r}): write a whole number of steps, or leave it out")


def set_step(state: State, step: int) -> None:
    """Count on from `step`: what the parts of a restored state are was loaded from a checkpoint of a framework."""
    state._data.step = step


def epochs(state: State, total: int) -> Iterator[int]:
    """Loop over the epochs that remain.

    Samplers and streams of the state are told the epoch. An epoch that was interrupted is entered again, and its loader
    gives what remains of it, which may be nothing. At the end the last step is saved, if commits had `every`.

    Args:
        state: A state that was restored.
        total: The number of epochs of the whole training.

    Yields:
        The number of each epoch, below `total`.

    Raises:
        ConfigError: The state was not restored, or is in another loop over epochs.
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
                "elastic.epochs() was called within a loop over epochs of the same state, which counts epochs once; "
                "write range() for the inner loop"
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
