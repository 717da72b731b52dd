"""The `elastic.State`s of one process: their directories, and which of them represents the job."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

from elastic.errors import ConfigError
from elastic.script.error_report import reporting_config_errors


class SavesItself(Protocol):
    """The interface of another state at a planned stop."""

    @property
    def step(self) -> int:
        """The number of committed steps."""

    def save(self) -> None:
        """Save the newest committed step to disk."""


def job_folder() -> str:
    """Return the checkpoint directory of a `restore` without `folder`."""
    return os.path.abspath(os.environ.get("ELASTIC_CHECKPOINT_DIR") or "checkpoints")


class Sibling:
    """One state among those of its process, from its restore on.

    `prefix` starts the names of its in-memory checkpoints. It depends on the order in which the script restores its
    states, and is the same in every generation.
    """

    def __init__(self, state: SavesItself, folder: str) -> None:
        """Assign `folder`, the checkpoint directory, to this state; a previous state may no longer save there."""
        self.folder = folder
        self.prefix = _prefixes.setdefault(folder, "" if folder == job_folder() else f"{len(_prefixes)}.")
        self.speaks = False
        """Whether this state receives the request of a planned stop and reports its steps to the agent."""
        self._state = weakref.ref(state)
        _siblings.pop(folder, None)  # The newest is the last.
        _siblings[folder] = self

    @property
    def others(self) -> list[Sibling]:
        """The other states, in the order in which they were restored."""
        return [sibling for sibling in _siblings.values() if sibling is not self]

    @property
    def is_the_jobs(self) -> bool:
        """Whether the job records this state's newest checkpoint, and a restore then requires it.

        That is the state in the job's checkpoint directory, otherwise the first state: the steps of the other states
        differ and must not be confused with it.
        """
        job = job_folder()
        return self.folder == job or (job not in _prefixes and self.folder == next(iter(_prefixes)))

    def speak_up(self) -> None:
        """Represent the job from now on, unless another state does; the state in the job's directory has priority."""
        speakers = [sibling for sibling in self.others if sibling.speaks]
        if not speakers or self.folder == job_folder():
            for sibling in speakers:
                sibling.speaks = False
            self.speaks = True

    def save_others(self) -> None:
        """Save the newest steps of the other states: only one state receives the request of a planned stop."""
        for sibling in self.others:
            state = sibling._state()
            if state is not None and state.step > 0:
                state.save()

    def require_own_folder(self) -> None:
        """Raise `ConfigError` if another state has since been restored from the same directory."""
        if _siblings.get(self.folder) is not self:
            with reporting_config_errors():
                raise ConfigError(
                    f"another elastic.State saves its checkpoints in {self.folder}; put everything into one State, or "
                    "give this one a separate directory: state.restore(folder=...)"
                )


_siblings: Final[weakref.WeakValueDictionary[str, Sibling]] = weakref.WeakValueDictionary()
"""The newest state of each directory: two in one would replace each other's checkpoints."""
_prefixes: Final[dict[str, str]] = {}
