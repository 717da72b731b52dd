"""What a training script wants to keep: `elastic.State`.

::

    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, best=0.0)
    state.restore()                                   # every rank; the newest complete checkpoint of any world
    for epoch in elastic.epochs(state, 30):
        for batch in loader:
            ...
            state.best = max(state.best, accuracy)    # a plain value is an attribute
            state.commit(every=50, memory_every=1)    # every rank, after each step

Modules may be wrapped (DDP, torch.compile) or sharded (FSDP2). Everything with `state_dict` and `load_state_dict` may
be a part. The random state of python, numpy and torch is kept as well: restored by rank where the world is the same,
and derived from seed, rank and step where it is another one.

It works under elastic-launch, under torchrun, and in a plain `python train.py`. Only elastic-launch asks for planned
stops and has memory that outlives a worker.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from elastic.channel.client import ChannelClient
from elastic.channel.messages import FirstCommit, RestoreDone, clock
from elastic.errors import CheckpointError, ConfigError, RestoreRefused, RestoreUnrecoverable
from elastic.script.error_report import report_error, reporting_config_errors
from elastic.train import report
from elastic.train.commit import Committer, Siblings, StateData
from elastic.train.statedict import parts

RESERVED: Final = frozenset({"commit", "epoch", "finish", "restore", "rng", "save", "step", "values"})
"""Names that a part or a value cannot have."""


_restored: weakref.WeakValueDictionary[str, State] = weakref.WeakValueDictionary()
"""The newest state of this process for each folder of checkpoints: two in one would replace each other's."""

_folders: dict[str, str] = {}
"""How the names of a state's memory begin, by its folder, in the order in which a script restored them: it is the same
in every world."""


@runtime_checkable
class HasStepsLeft(Protocol):
    """A sampler that knows what is left."""

    def steps_left(self, epochs: int) -> int | None:
        """The steps until so many epochs are done, None while that is not known."""


class State:
    """Parts and values that are committed together. See the module's text for an example."""

    def __init__(self, **things: Any) -> None:
        """Name what is to be kept. What has no `state_dict` is a plain value, and an attribute from now on.

        Raises `ConfigError` for a reserved name, or a thing that could not be loaded again.
        """
        with reporting_config_errors():
            for name in things:
                if name in RESERVED or name.startswith("_"):
                    raise ConfigError(f"elastic.State: {name!r} is a name of its own; give yours another one")
                if not name.isidentifier():  # Files of the checkpoint are named after parts.
                    better = re.sub(r"\W", "_", name)
                    raise ConfigError(f"elastic.State: {name!r} is not a name as Python's are; write {better!r}")
            things |= _batches(things)
            made = parts.make(things)
            values = {name: parts.plain(name, thing) for name, thing in things.items() if name not in made}
        self._things = {name: things[name] for name in made}
        self._data = StateData(values)
        self._first = True
        self._end: ChannelClient | None = None
        self._committer: Committer | None = None
        self._parts = made
        self._where = ""
        self._looped = False
        self._epochs = 0
        self._speaks = False
        """Whether it is this one of several that hears the word of a planned stop, and tells the agent its steps."""

    @property
    def step(self) -> int:
        """Steps that were committed so far, in all worlds."""
        return self._data.step

    @property
    def epoch(self) -> int:
        """The epoch that `elastic.epochs` is in, from 0 on."""
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
        """Go on from the newest complete checkpoint; False if there is none and training starts anew.

        A collective: every rank calls it once, after `elastic.init()` and before the first step. All ranks get the
        newest step that any of them can read, from memory or from disk. `step`, `resume_from`, `allow_rollback` and
        `folder` are what --restore_step, --resume_from, --allow_rollback and --checkpoint_dir say, which they
        override; `keep` is how many checkpoints stay on disk, `memory_copies` on how many other nodes each shard is
        kept in memory (replicated parts are on all nodes anyway).

        Raises `CheckpointError`, with the mend, when nothing as new as the newest committed step can be read, and
        when every checkpoint is damaged.
        """
        with reporting_config_errors():
            if self._committer is not None:
                raise ConfigError("state.restore() was called twice; call it once, before the first step")
            for name, part in self._parts.items():
                parts.require_values(name, part)
            where = os.path.abspath(folder) if folder else _jobs_folder()
            _restored.pop(where, None)  # So that they stand in the order in which they were restored.
            _restored[where], self._where = self, where
            owner = _folders.setdefault(where, "" if where == _jobs_folder() else f"{len(_folders)}.")
            self._end = report.end()
            keeper = Committer(
                self._data,
                Siblings(self._check_alone, self._save_others, self._is_missed),
                self._parts,
                self._things,
                self._end,
                folder=folder,
                keep=keep,
                memory_copies=memory_copies,
                owner=owner,
                others={_jobs_folder(), *_restored} - {where},
            )
            try:
                restored = keeper.restore(step=step, resume_from=resume_from, allow_rollback=allow_rollback)
            except CheckpointError as error:
                unrecoverable = isinstance(error, RestoreUnrecoverable)
                raise RestoreRefused(
                    report_error(error, code=RestoreRefused.exit_code, unrecoverable=unrecoverable)
                ) from error
        self._committer = keeper
        if self._end is not None:
            self._end.send(RestoreDone(self._data.step if restored else -1, clock()))
        return restored

    def commit(
        self,
        *,
        every: int | None = None,
        memory_every: int | None = None,
        loss: Any = None,
        total: int | None = None,
    ) -> None:
        """Count a step that is done; save it when that is due. Every rank calls it after each step.

        `every`: each so many steps a checkpoint goes to disk, in the background. `memory_every`: each so many steps a
        copy goes to memory of the node that outlives the worker. `loss` is for the progress line and for --check_nan.
        `total` is how many steps there will be in all, where that is not what `elastic.epochs` makes of its sampler.
        When a planned stop was asked for, all ranks stop at a common step here: it is saved, and the worker leaves
        with exit code 143.

        Raises `CheckpointError` when this or the save before could not be written (the checkpoint before stays), and
        `NotFinite` with --check_nan. Costs microseconds when nothing is due.
        """
        keeper = self._committer
        if keeper is None:
            with reporting_config_errors():
                raise ConfigError(
                    "state.commit() was called before state.restore(); call state.restore() once on every rank, "
                    "before the first step"
                )
            return
        first, self._first = self._first, False
        if first:
            with reporting_config_errors():
                _check_every(every=every, memory_every=memory_every)
            self._speak_up()
        step = self._data.step = self._data.step + 1
        keeper.on_step_committed()
        end = self._end
        word = None
        if end is not None and self._speaks:
            if first:
                end.send(FirstCommit(clock()))
            report.reported(step, loss, self._total if total is None else total)
            word = end.stop_asked()
        disk = bool(every) and step % every == 0  # type: ignore[operator]  # mypy does not see the None go.
        memory = bool(memory_every) and step % memory_every == 0  # type: ignore[operator]
        if every:
            keeper.saves = True
        if memory_every:
            keeper.remembers = True
        if disk or memory or word is not None or keeper.checks:
            keeper.save_due(step, disk=disk, memory=memory, word=word, loss=loss)

    def save(self) -> None:
        """Save the newest committed step to disk now, and wait until it is there. Every rank calls it.

        Call it right after a commit, or between epochs: it saves everything as it is now.
        With several ranks nothing is saved while an exception is on its way (`finally: state.save()`), since the other
        ranks are elsewhere and would be waited for; a line says so.
        """
        if self._committer is not None:
            self._committer.save_now(self._data.step)

    def finish(self) -> None:
        """Save the last step if it is not saved yet, and wait for it. `elastic.epochs` calls it at its end."""
        if self._committer is not None:
            self._committer.finish(self._data.step)

    def _total(self) -> int:
        """How many steps there will be in all, 0 if that is not known: in this world, with what is left of epochs."""
        if not self._looped:
            return 0
        for thing in self._things.values():
            if isinstance(thing, HasStepsLeft) and (left := thing.steps_left(self._epochs)) is not None:
                return self._data.step + left
        return 0

    def _speak_up(self) -> None:
        """Speak for the job from now on, unless another state does; the one in the job's own folder always does."""
        others = [one for one in _restored.values() if one is not self and one._speaks]
        if not others or self._where == _jobs_folder():
            for one in others:
                one._speaks = False
            self._speaks = True

    def _is_missed(self) -> bool:
        """Whether its newest checkpoint is the one that the job knows of, and misses when it is gone.

        Of several states it is the one in the job's own folder, else the first: the others, whose steps are others,
        must not be taken for it.
        """
        job = _jobs_folder()
        return self._where == job or (job not in _folders and self._where == next(iter(_folders)))

    def _save_others(self) -> None:
        """At a planned stop, which only one state hears of: save the last steps of the others, as it saves its own."""
        for one in list(_restored.values()):
            if one is not self and one.step > 0:
                one.save()

    def _check_alone(self) -> None:
        """Raise `ConfigError` if another state was restored from this one's folder since."""
        if _restored.get(self._where) is not self:
            with reporting_config_errors():
                raise ConfigError(
                    f"another elastic.State keeps its checkpoints in {self._where}; put everything into one State, or "
                    "give this one a folder of its own: state.restore(folder=...)"
                )

    def __getattr__(self, name: str) -> Any:
        """A part, or a plain value."""
        if not name.startswith("_"):
            if name in self._data.values:
                return self._data.values[name]
            if name in self._things:
                return self._things[name]
            raise AttributeError(
                f"this state has no {name!r}; it has {', '.join(sorted({*self._data.values, *self._things}))}"
            )
        raise AttributeError(name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Change a plain value. A new name becomes another one, from the next commit on."""
        if name.startswith("_"):
            object.__setattr__(self, name, value)
        elif name in RESERVED or name in self._things:
            raise AttributeError(f"{name!r} of a state cannot be replaced")
        else:
            with reporting_config_errors():
                self._data.values[name] = parts.plain(name, value)


def _jobs_folder() -> str:
    """Where checkpoints lie unless `restore` was told a folder."""
    return os.path.abspath(os.environ.get("ELASTIC_CHECKPOINT_DIR") or "checkpoints")


def _check_every(**given: int | None) -> None:
    """Raise `ConfigError` for what is no number of steps; None and 0 are never."""
    for name, steps in given.items():
        if steps is not None and (not isinstance(steps, int) or steps < 0):
            raise ConfigError(f"state.commit({name}={steps!r}): write a whole number of steps, or leave it out")


def _batches(things: Mapping[str, Any]) -> dict[str, Any]:
    """The `elastic.batch` of each sampler: the learning rates that it scaled must be known in the next world."""
    known = {id(thing) for thing in things.values()}
    found = {name: getattr(thing, "batch", None) for name, thing in things.items() if hasattr(thing, "set_epoch")}
    return {
        f"{name}_batch": batch
        for name, batch in found.items()
        if hasattr(batch, "weigh") and hasattr(batch, "state_dict") and id(batch) not in known
        if f"{name}_batch" not in things
    }


def epochs(state: State, total: int) -> Iterator[int]:
    """The epochs that are left, each by its number, up to `total`.

    Samplers and streams of the state are told the epoch. An epoch that was interrupted is entered again, and its loader
    gives what is left of it, which may be nothing. At the end the last step is saved.
    """
    if total < 0:
        raise ValueError(f"epochs are 0 or more, not {total}")
    if state._committer is None:
        with reporting_config_errors():
            raise ConfigError("elastic.epochs() was called before state.restore()")
        return
    if state._looped:
        with reporting_config_errors():
            raise ConfigError(
                "elastic.epochs() was called within a loop over epochs of the same state, which counts epochs once; "
                "write range() for the inner loop"
            )
        return
    state._looped, state._epochs = True, total
    try:
        while state._data.epoch < total:
            state._committer.set_epoch(state._data.epoch)
            yield state._data.epoch
            state._data.epoch += 1
    finally:
        state._looped = False
    state.finish()
