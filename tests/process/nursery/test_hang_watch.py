"""The shell that looks for workers that hang, over a real channel: this process plays the workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic.channel.client import ChannelClient
from elastic.channel.messages import Progress, WorkerHello
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from launcher.logs.worker_log import WorkerStartLog
from launcher.workers import hang_watch
from launcher.workers.exit_classification import Numbers
from launcher.workers.failure_causes import HUNG, FailureCause
from launcher.workers.hang_watch import HangWatch
from launcher.workers.reports import stacks
from launcher.workers.reports.worker_channel import WorkerChannel
from launcher.workers.worker_output import WorkerProcess
from tests.support.start_logs import Nowhere
from tests.support.worker_messages import tracked

LIMIT_S = 0.1
STORY_LIMIT_S = 30.0
SHOWN = "its stack traces are in its log"


class Watched:
    """A node. `asked` is set when its workers are to show their stacks, `told` gets who hangs, by generation."""

    def __init__(self, folder: Path) -> None:
        agent_log = AgentLog("a", Console(2), level=Verbosity.QUIET)
        self.talk = WorkerChannel(
            folder / "talk", agent_log, lambda heard, message: self.watch.on_message(heard, message)
        )
        self.logs = [WorkerStartLog(Nowhere(), Path(f"workerlog.{local}"), "") for local in range(2)]
        self.asked = asyncio.Event()
        self.told: asyncio.Queue[tuple[int, list[int]]] = asyncio.Queue()
        self.watch = HangWatch(self.talk, LIMIT_S, self._hung)
        self._ends: list[ChannelClient] = []
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self.asked.set)
        self.talk.start()

    def begin(self, g: int, count: int) -> None:
        """The next generation has so many workers here; each of them makes one step, and no other."""
        workers = {local: tracked(local, g) for local in range(count)}
        for local, worker in workers.items():
            worker.output = cast(WorkerProcess, SimpleNamespace(log=self.logs[local]))
        self.talk.begin(g, workers)
        self.watch.begin(g)
        for local in range(count):
            end = ChannelClient(self.talk.path, WorkerHello(local, local, os.getpid(), g, signal.SIGUSR2))
            end.send(Progress(1, count, {}))
            self._ends.append(end)

    def end(self) -> None:
        """The workers are gone."""
        self.talk.end()
        self.watch.end()

    def close(self) -> None:
        self.talk.close()
        for end in self._ends:
            end.close()

    def _hung(self, g: int, cause: FailureCause, late: Mapping[int, Numbers]) -> None:
        assert cause is HUNG
        self.told.put_nowait((g, [local for local, numbers in late.items() if numbers["state"] == SHOWN]))


def played(folder: Path, story: Callable[[Watched], Coroutine[Any, Any, None]]) -> None:
    """Play a story while the watch runs; it fails when the watch does."""

    async def main() -> None:
        watched = Watched(folder)
        try:
            async with asyncio.timeout(STORY_LIMIT_S), asyncio.TaskGroup() as group:
                running = group.create_task(watched.watch.run())
                await story(watched)
                running.cancel()
        finally:
            watched.close()

    asyncio.run(main())


@pytest.mark.parametrize("looks", [0, 4])
def test_workers_that_are_gone_while_their_stacks_are_awaited_are_no_hang_and_the_next_are_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """They were stopped because others failed; it is looked so often before those of the next generation run."""
    monkeypatch.setattr(hang_watch, "STACKS_LIMIT_S", STORY_LIMIT_S)

    async def story(watched: Watched) -> None:
        watched.begin(1, 2)
        await watched.asked.wait()
        watched.end()
        await asyncio.sleep(looks * stacks.QUIET_S)
        watched.asked.clear()
        watched.begin(2, 1)
        await watched.asked.wait()
        assert watched.told.empty(), "generation 1 is over"
        watched.logs[0].write(b"its stacks")
        assert await watched.told.get() == (2, [0])

    played(tmp_path, story)
