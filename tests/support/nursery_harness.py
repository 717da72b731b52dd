"""A nursery with the test as its agent: what the process tests share."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.logs.console import Console
from launcher.logs.writer_client import LogSink
from launcher.nursery.protocol import ChildExited, ChildrenForked, GenerationExited, NurseryReady
from launcher.nursery.warm_policy import PreloadConfig
from launcher.system.clock import boottime
from launcher.workers.nursery_client import NurseryClient, NurseryEvent
from launcher.workers.spec import WorkerSpec

LONG_S = 60.0
LIMIT_S = 20.0
PREPARE_LIMIT_S = 100.0


@dataclass
class Nest:
    """Workers, their events, and a folder for their logs."""

    workers: NurseryClient
    events: asyncio.Queue[NurseryEvent]
    folder: Path
    complaints: list[str]
    cold: str = ""
    """Why the nursery starts workers cold, as it said last."""

    def spec(self, code: str, *args: str, rank: int = 0, shown: bool = False, shared: bool = False) -> WorkerSpec:
        """A worker that runs `code`."""
        return self.program(sys.executable, "-c", code, *args, rank=rank, shown=shown, shared=shared)

    def program(
        self,
        *argv: str,
        rank: int = 0,
        shown: bool = False,
        shared: bool = False,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> WorkerSpec:
        """A worker that runs any program."""
        return WorkerSpec(
            rank=rank,
            local_rank=rank,
            argv=argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1"} if env is None else env,
            cwd=str(cwd or self.folder),
            log=self.log(rank),
            shown=shown,
            header=f"==== rank {rank} ====",
            shared=shared,
        )

    def log(self, rank: int = 0) -> Path:
        return self.folder / f"workerlog.{rank}"

    def run_for(self, seconds: float) -> None:
        self.workers.run_until(boottime() + seconds)

    async def next(self, limit_s: float = LIMIT_S) -> NurseryEvent:
        async with asyncio.timeout(limit_s):
            while isinstance(event := await self.events.get(), NurseryReady):
                self.cold = event.cold
            return event

    async def prepared(self) -> NurseryReady:
        """Wait for the end of the imports."""
        async with asyncio.timeout(PREPARE_LIMIT_S):
            event = await self.events.get()
        assert isinstance(event, NurseryReady), event
        self.cold = event.cold
        return event

    async def spawned(self) -> tuple[int, ...]:
        event = await self.next()
        assert isinstance(event, ChildrenForked), event
        return event.pids

    async def exited(self) -> ChildExited:
        event = await self.next()
        assert isinstance(event, ChildExited), event
        return event

    async def gone(self) -> GenerationExited:
        event = await self.next()
        assert isinstance(event, GenerationExited), event
        return event

    async def says(self, *lines: str, rank: int = 0) -> list[str]:
        """Wait until a worker's log holds each of these texts; its lines."""
        await _until(lambda: all(line in (text := self._text(rank)) and text.endswith("\n") for line in lines))
        return self._text(rank).splitlines()

    async def grows(self, size: int, rank: int = 0) -> None:
        """Wait until a worker's log has so many bytes."""
        await _until(lambda: self.log(rank).stat().st_size >= size)

    def _text(self, rank: int) -> str:
        return self.log(rank).read_text(errors="replace")


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():  # noqa: ASYNC110  # a file cannot be awaited
            await asyncio.sleep(0.005)


@asynccontextmanager
async def nest(
    folder: Path,
    *,
    lock: Path | None = None,
    stdout: Console | None = None,
    stderr: Console | None = None,
    recipe: PreloadConfig | None = None,
    sink: LogSink | None = None,
) -> AsyncIterator[Nest]:
    """A started nursery with a minute to run; closed at the end. With a recipe it is warm."""
    events: asyncio.Queue[NurseryEvent] = asyncio.Queue()
    complaints: list[str] = []
    workers = NurseryClient(
        events.put_nowait,
        lock=lock,
        recipe=recipe,
        stdout=stdout or null(),
        stderr=stderr or null(),
        complain=complaints.append,
        sink=sink,
    )
    await workers.start()
    made = Nest(workers, events, folder, complaints)
    await made.prepared()
    made.run_for(LONG_S)
    try:
        yield made
    finally:
        await workers.close()


def null() -> Console:
    fd = os.open(os.devnull, os.O_WRONLY)
    try:
        return Console(fd)
    finally:
        os.close(fd)


def watch_end(pid: int) -> Callable[[float], bool]:
    """Look at a process now; the answer waits until it has ended, and tells whether it did within so many seconds."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda _limit_s: True

    def ended(limit_s: float) -> bool:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        try:
            return bool(poll.poll(limit_s * 1000))
        finally:
            os.close(fd)

    return ended


def pids(lines: list[str]) -> list[int]:
    """The numbers of lines like "pid 123"."""
    return [int(line.split()[1]) for line in lines if line.startswith("pid ")]
