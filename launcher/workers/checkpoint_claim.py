"""The fence around the checkpoint folder, put up by the node of rank 0 for each generation.

It is put up in a thread that nobody waits for: a network disk may hang for longer than a lease lives, and this node
must show all the while that it may run.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from pathlib import Path

from elastic.errors import CheckpointError, CheckpointFenced
from elastic.train.checkpoint import fence
from launcher.logs.logger import AgentLog

PAUSE_S = 1.0
TRIES_MAX = 30
"""Workers start, and then wait for `folder.MARK_WAIT_S`. After that nobody asks for the mark."""
SLOW_S = 5.0
"""A folder that has not answered by then is named: a start waits for it."""


class CheckpointClaim:
    """At most one at a time counts: that of the generation which runs."""

    def __init__(self, folder: Path, agent_log: AgentLog) -> None:
        """Nothing is claimed yet."""
        self._folder = folder
        self._agent_log = agent_log
        self._claiming: asyncio.Task[None] | None = None

    def begin(self, mark: str) -> None:
        """From soon on only the generation of `mark`, `<incarnation>/<g>`, writes there; its workers wait for that.

        A folder that cannot be written now may be mended before the workers ask for the mark: it is tried again.
        """
        self.end()
        self._claiming = asyncio.get_running_loop().create_task(self._claim(mark))

    def end(self) -> None:
        """Try no more: its workers are gone. A claim that still comes through is overtaken by the next one's."""
        if self._claiming is not None:
            self._claiming.cancel()

    async def _claim(self, mark: str) -> None:
        warning = self._agent_log.warning
        for tries in range(TRIES_MAX):
            answer = self._try(mark)
            await asyncio.wait({answer}, timeout=SLOW_S)
            if not tries and not answer.done():
                warning(
                    f"the checkpoint folder {self._folder} has not answered for {SLOW_S:g} s; workers that restore "
                    "wait for it"
                )
            result = await answer
            if isinstance(result, str):
                break
            if not tries or isinstance(result, CheckpointFenced):
                warning(f"the checkpoint folder is not guarded: {result}")
            if isinstance(result, CheckpointFenced):
                return
            await asyncio.sleep(PAUSE_S)
        else:
            return
        if tries:
            warning("the checkpoint folder is guarded now")
        if result:
            warning(
                f"another job ({result}) had claimed the checkpoint folder, and this one takes it back: they mix "
                "their checkpoints; give each job a --checkpoint_dir of its own"
            )

    def _try(self, mark: str) -> asyncio.Future[str | CheckpointError]:
        """The job that had the folder, or the error: in a thread of its own."""
        answer: Future[str | CheckpointError] = Future()
        answer.set_running_or_notify_cancel()  # So that the end of a wait for it does not cancel it.

        def claim() -> None:
            try:
                answer.set_result(fence.claim(self._folder, mark))
            except CheckpointError as error:
                answer.set_result(error)

        threading.Thread(target=claim, name="claim", daemon=True).start()
        return asyncio.wrap_future(answer)
