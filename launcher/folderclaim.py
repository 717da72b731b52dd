"""The fence around the checkpoint folder, put up by the node of rank 0 for each generation."""

from __future__ import annotations

import asyncio
from pathlib import Path

from elastic.errors import CheckpointError, CheckpointFenced
from elastic.train import fence
from launcher.logs import Narrator

PAUSE_S = 1.0
TRIES_MAX = 30
"""Workers start, and then wait for `elastic.train.reading.MARK_WAIT_S`. After that nobody asks for the mark."""


class FolderClaim:
    """At most one at a time: that of the generation which runs."""

    def __init__(self, folder: Path, narrator: Narrator) -> None:
        """Nothing is claimed yet."""
        self._folder = folder
        self._narrator = narrator
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, mark: str) -> None:
        """From now on only the generation of `mark`, `<incarnation>/<g>`, writes there.

        A folder that cannot be written now may be mended before the workers ask for the mark: it is tried again.
        """
        self.end()
        self._claim(mark, TRIES_MAX)

    def end(self) -> None:
        """Try no more: its workers are gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _claim(self, mark: str, tries: int) -> None:
        self._timer = None
        try:
            taken_by = fence.claim(self._folder, mark)
        except CheckpointFenced as error:
            self._narrator.warn(f"the checkpoint folder is not guarded: {error}")
        except CheckpointError as error:
            if tries == TRIES_MAX:
                self._narrator.warn(f"the checkpoint folder is not guarded: {error}")
            if tries > 1:
                self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._claim, mark, tries - 1)
        else:
            if tries < TRIES_MAX:
                self._narrator.warn("the checkpoint folder is guarded now")
            if taken_by:
                self._narrator.warn(
                    f"another job ({taken_by}) had claimed the checkpoint folder, and this one takes it back: they mix "
                    "their checkpoints; give each job a --checkpoint_dir of its own"
                )
