"""The `elastic.State`s of one process: which folder is whose, and which of them answers for the job."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

from elastic.errors import ConfigError
from elastic.script.error_report import reporting_config_errors


class SavesItself(Protocol):
    """What is asked of another state at a planned stop."""

    @property
    def step(self) -> int:
        """Steps that it has committed."""

    def save(self) -> None:
        """Save the newest of them."""


def job_folder() -> str:
    """Where checkpoints lie unless `restore` was told a folder."""
    return os.path.abspath(os.environ.get("ELASTIC_CHECKPOINT_DIR") or "checkpoints")


class Sibling:
    """One state among those of its process, from its restore on.

    `prefix` begins the names of its copies in memory: it follows from the order in which a script restored its states,
    and is the same in every world.
    """

    def __init__(self, state: SavesItself, folder: str) -> None:
        """`folder` has its checkpoints, and now belongs to this state: a former one may no longer save there."""
        self.folder = folder
        self.prefix = _prefixes.setdefault(folder, "" if folder == job_folder() else f"{len(_prefixes)}.")
        self.speaks = False
        """Whether this state, of several, receives the request of a planned stop and reports its steps to the agent."""
        self._state = weakref.ref(state)
        _siblings.pop(folder, None)  # The newest is the last.
        _siblings[folder] = self

    @property
    def others(self) -> list[Sibling]:
        """The other states, in the order in which they were restored."""
        return [sibling for sibling in _siblings.values() if sibling is not self]

    @property
    def is_the_jobs(self) -> bool:
        """Whether its newest checkpoint is the one that the job knows of, and misses when it is gone.

        Of several states it is the one in the job's own folder, else the first: the others, whose steps are others,
        must not be taken for it.
        """
        job = job_folder()
        return self.folder == job or (job not in _prefixes and self.folder == next(iter(_prefixes)))

    def speak_up(self) -> None:
        """Speak for the job from now on, unless another state does; the one in the job's own folder always does."""
        speakers = [sibling for sibling in self.others if sibling.speaks]
        if not speakers or self.folder == job_folder():
            for sibling in speakers:
                sibling.speaks = False
            self.speaks = True

    def save_others(self) -> None:
        """Save the last steps of the others: only one state receives the request of a planned stop."""
        for sibling in self.others:
            state = sibling._state()
            if state is not None and state.step > 0:
                state.save()

    def require_own_folder(self) -> None:
        """Raise `ConfigError` if another state was restored from this one's folder since."""
        if _siblings.get(self.folder) is not self:
            with reporting_config_errors():
                raise ConfigError(
                    f"another elastic.State keeps its checkpoints in {self.folder}; put everything into one State, or "
                    "give this one a folder of its own: state.restore(folder=...)"
                )


_siblings: Final[weakref.WeakValueDictionary[str, Sibling]] = weakref.WeakValueDictionary()
"""The newest state of each folder: two in one would replace each other's checkpoints."""
_prefixes: Final[dict[str, str]] = {}
