"""The fence around the checkpoint directory, acquired by the node of rank 0 for each generation.

A separate thread writes it, and the agent does not wait for that thread: a network disk may hang for longer than the
lease TTL, and this node must renew its lease meanwhile.
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
"""Workers start, and then wait for `folder.MARK_WAIT_S`. After that no worker waits for the mark."""
SLOW_S = 5.0
"""After this time the agent names the directory in a warning, because a start waits for it."""


class CheckpointClaim:
    """At most one claim is active: that of the running generation."""

    def __init__(self, folder: Path, agent_log: AgentLog) -> None:
        """`folder` is the checkpoint directory; `agent_log` receives warnings if it cannot be claimed."""
        self._folder = folder
        self._agent_log = agent_log
        self._claiming: asyncio.Task[None] | None = None

    def begin(self, mark: str) -> None:
        """Claim the directory in the background for the generation of `mark`, `<incarnation>/<g>`; its workers wait.

        If the directory is not writable now, the claim is retried: a user may repair it before the workers need it.
        """
        self.end()
        self._claiming = asyncio.get_running_loop().create_task(self._claim(mark))

    def end(self) -> None:
        """Stop retrying: the workers have exited. A claim that succeeds later is replaced by the next generation's."""
        if self._claiming is not None:
            self._claiming.cancel()

    async def _claim(self, mark: str) -> None:
        warning = self._agent_log.warning
        for tries in range(TRIES_MAX):
            answer = self._try(mark)
            await asyncio.wait({answer}, timeout=SLOW_S)
            if not tries and not answer.done():
                warning(
                    f"the checkpoint directory {self._folder} has not responded for {SLOW_S:g} s; workers that restore "
                    "wait for it"
                )
            result = await answer
            if isinstance(result, str):
                break
            if not tries or isinstance(result, CheckpointFenced):
                warning(f"the checkpoint directory is not fenced: {result}")
            if isinstance(result, CheckpointFenced):
                return
            await asyncio.sleep(PAUSE_S)
        else:
            return
        if tries:
            self._agent_log.always("the checkpoint directory is fenced now")
        if result:
            warning(
                f"another job ({result}) had claimed the checkpoint directory, and this job claims it again: the two "
                "mix their checkpoints; give each job a separate --checkpoint-dir"
            )

    def _try(self, mark: str) -> asyncio.Future[str | CheckpointError]:
        """Return, from a separate thread, the job that had the directory, or the error."""
        answer: Future[str | CheckpointError] = Future()
        answer.set_running_or_notify_cancel()  # So that the end of a wait for it does not cancel it.

        def claim() -> None:
            try:
                answer.set_result(fence.claim(self._folder, mark))
            except CheckpointError as error:
                answer.set_result(error)

        threading.Thread(target=claim, name="claim", daemon=True).start()
        return asyncio.wrap_future(answer)
