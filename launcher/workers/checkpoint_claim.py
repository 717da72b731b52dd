"""The fence around the checkpoint folder, put up by the node of rank 0 for each generation.

It is put up in a thread that nobody waits for: a network disk may hang for longer than a lease lives, and this node
must show all the while that it may run.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

from elastic.errors import CheckpointError, CheckpointFenced
from elastic.train.checkpoint import fence
from launcher.logs.logger import AgentLog

PAUSE_S = 1.0
TRIES_MAX = 30
"""Workers start, and then wait for `reader.MARK_WAIT_S`. After that nobody asks for the mark."""
SLOW_S = 5.0
"""A folder that has not answered by then is named: a start waits for it."""


class CheckpointClaim:
    """At most one at a time counts: that of the generation which runs."""

    def __init__(self, folder: Path, agent_log: AgentLog) -> None:
        """Nothing is claimed yet."""
        self._folder = folder
        self._agent_log = agent_log
        self._mark = ""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, mark: str) -> None:
        """From soon on only the generation of `mark`, `<incarnation>/<g>`, writes there; its workers wait for that.

        A folder that cannot be written now may be mended before the workers ask for the mark: it is tried again.
        """
        self.end()
        self._mark = mark
        self._claim(mark, TRIES_MAX)

    def end(self) -> None:
        """Try no more: its workers are gone. A claim that still comes through is overtaken by the next one's."""
        self._mark = ""
        if self._timer is not None:
            self._timer.cancel()

    def _claim(self, mark: str, tries: int) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SLOW_S, self._slow) if tries == TRIES_MAX else None

        def claim() -> None:
            result: str | CheckpointError
            try:
                result = fence.claim(self._folder, mark)
            except CheckpointError as error:
                result = error
            with suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(self._claimed, mark, tries, result)

        threading.Thread(target=claim, name="claim", daemon=True).start()

    def _slow(self) -> None:
        self._agent_log.warning(
            f"the checkpoint folder {self._folder} has not answered for {SLOW_S:g} s; workers that restore wait for it"
        )

    def _claimed(self, mark: str, tries: int, result: str | CheckpointError) -> None:
        """What came of a try: whose the folder was, or the error."""
        if mark != self._mark:
            return
        if self._timer is not None:
            self._timer.cancel()
        if isinstance(result, CheckpointFenced):
            self._agent_log.warning(f"the checkpoint folder is not guarded: {result}")
        elif isinstance(result, CheckpointError):
            if tries == TRIES_MAX:
                self._agent_log.warning(f"the checkpoint folder is not guarded: {result}")
            if tries > 1:
                self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._claim, mark, tries - 1)
        else:
            if tries < TRIES_MAX:
                self._agent_log.warning("the checkpoint folder is guarded now")
            if result:
                self._agent_log.warning(
                    f"another job ({result}) had claimed the checkpoint folder, and this one takes it back: they mix "
                    "their checkpoints; give each job a --checkpoint_dir of its own"
                )
