"""`elastic-ctl logs --all`: the logs of all processes of a job, each line with its process."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from elastic.core.ps.model import ClusterSpec, Role
from elastic.core.text import process_name
from elastic.core.view import StoreView
from launcher.ctl.logs.follower import LogFollower
from launcher.ctl.logs.output import LineOutput
from launcher.ctl.logs.previous import print_previous
from launcher.job.inspect_client import InspectError
from launcher.job.named_job import WHO, NamedJob
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line

SAME_S: Final = 5.0
"""A message that another rank has caused within this time is not repeated."""


def processes(view: StoreView) -> list[tuple[Role, int]]:
    """All processes of the newest generation; none if there is no generation yet."""
    generation = view.current_generation
    if generation is None:
        return []
    if isinstance(generation, ClusterSpec):
        return [(role, each.task.index) for role in Role for each in generation.task_assignments(role)]
    return [(Role.WORKER, rank) for rank in range(generation.world_size)]


async def print_once(
    job: NamedJob, newest: JobWatch, lines: int, since_s: float | None, *, raw: bool, previous: bool
) -> int:
    """Write the last lines of each log, one log after the other; returns 1 if one of them could not be read."""
    code = 0
    everything = processes(newest.view)
    if not everything:
        raise InspectError("there is no worker yet: no generation has formed")
    for role, index in everything:
        output = _output(role, index, raw=raw)
        try:
            if previous:
                await print_previous(job, newest.view, role, index, lines, output)
            else:
                await LogFollower(job, newest, role, index, output, since_s=since_s).print_once(lines)
        except InspectError as error:
            write_stderr_line(f"{process_name(role, index)}: {error}", WHO)
            code = error.exit_code
        finally:
            output.close()
    return code


async def follow(job: NamedJob, newest: JobWatch, lines: int, since_s: float | None, *, raw: bool) -> int:
    """Write all logs as they grow, including those of ranks that appear later, until the job has ended.

    A rank whose node never answers is reported, and the others are followed; the exit code is then 1.
    """
    followers = _Followers(job, newest, lines, since_s, raw=raw)
    try:
        async with asyncio.TaskGroup() as group:
            await followers.run(group)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return followers.code


class _Followers:
    """One follower for each process; they share one watch of the job."""

    def __init__(self, job: NamedJob, newest: JobWatch, lines: int, since_s: float | None, *, raw: bool) -> None:
        self.code = 0
        self._job = job
        self._newest = newest
        self._lines = lines
        self._since_s = since_s
        self._raw = raw
        self._say = _OnceForAll()
        self._shares: dict[tuple[Role, int], _Share] = {}

    async def run(self, group: asyncio.TaskGroup) -> None:
        """Start a follower for every process that appears; return when the job has ended, or no log is left."""
        tasks = set[asyncio.Task[None]]()
        while True:
            ended = self._newest.view.verdict is not None
            if not ended:
                tasks |= {group.create_task(self._follow(*process)) for process in self._new()}
            for share in self._shares.values():
                share.changed.set()
            if ended or (tasks and all(task.done() for task in tasks)):
                return
            changes = group.create_task(self._changes())
            await asyncio.wait({changes, *(task for task in tasks if not task.done())}, return_when="FIRST_COMPLETED")
            changes.cancel()

    async def _changes(self) -> None:
        await self._newest.changes()

    def _new(self) -> list[tuple[Role, int]]:
        new = [process for process in processes(self._newest.view) if process not in self._shares]
        self._shares |= {process: _Share(self._newest) for process in new}
        return new

    async def _follow(self, role: Role, index: int) -> None:
        output = _output(role, index, raw=self._raw)
        share = self._shares[role, index]
        follower = LogFollower(self._job, share, role, index, output, since_s=self._since_s, say=self._say)
        try:
            await follower.follow(self._lines)
        except InspectError as error:
            self._say(f"{process_name(role, index)}: {error}")
            self.code = error.exit_code
        finally:
            output.close()


class _Share:
    """The share of one follower in the watch of a job: it is woken by every change, however many wait for it."""

    def __init__(self, newest: JobWatch) -> None:
        self.changed = asyncio.Event()
        self._newest = newest

    @property
    def view(self) -> StoreView:
        return self._newest.view

    @property
    def outage(self) -> str:
        return self._newest.outage

    async def changes(self, limit_s: float | None = None) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                await self.changed.wait()
        except TimeoutError:
            return False
        self.changed.clear()
        return True


class _OnceForAll:
    """Reports to stderr; what all followers report, such as the end of the job, is one line."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        self._said = {said: at for said, at in self._said.items() if now - at < SAME_S}
        if text not in self._said:
            self._said[text] = now
            write_stderr_line(text, WHO)


def _output(role: Role, index: int, *, raw: bool) -> LineOutput:
    return LineOutput(f"[{process_name(role, index)}] ", raw=raw)
