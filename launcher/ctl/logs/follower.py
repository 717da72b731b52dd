"""Follows the log of one process over restarts: from the agent of the node that runs it now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from elastic.core.ps.model import Role
from elastic.core.text import process_name
from elastic.core.view import StoreView
from launcher.ctl.logs.output import LogOutput
from launcher.job import process_location
from launcher.job.inspect_client import InspectBusy, InspectClient, InspectError
from launcher.job.named_job import WHO, NamedJob
from launcher.system.descriptors import write_stderr_line
from launcher.text.failure_report import HOW_ENDED
from launcher.wire.inspect_messages import LINES_MAX, LogEnd, LogPiece, LogQuestion, LogStart

AGAIN_S: Final = 1.0
"""Seconds before a failed query of a node is repeated, unless the process moves to another node sooner."""
SILENT_S: Final = 5.0
"""If a node sends nothing for this long while the process runs elsewhere, its agent is blocked, and is left."""
TRIES_S: Final = 30.0
"""Seconds for which a registered node that has never answered is queried; or `LEASES` of the job if longer."""
LEASES: Final = 2.0
"""A node that died is registered until its lease has ended."""


class ViewSource(Protocol):
    """The source of a follower's view of the job in etcd: a `JobWatch`, or a share of one."""

    @property
    def view(self) -> StoreView:
        """The newest view."""

    @property
    def outage(self) -> str:
        """Why etcd does not answer, "" while it does."""

    async def changes(self, limit_s: float | None = None) -> bool:
        """Wait for a change, at most this long; return whether there was one."""


class LogFollower:
    """Writes one log to its output, and reports on stderr where it comes from when that changes."""

    def __init__(
        self,
        job: NamedJob,
        newest: ViewSource,
        role: Role,
        index: int,
        output: LogOutput,
        *,
        since_s: float | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        """Lines that were written longer than `since_s` before now are left out."""
        self._job = job
        self._newest = newest
        self._role = role
        self._index = index
        self._output = output
        self._say_line = say or partial(write_stderr_line, who=WHO)
        self._since_s = since_s
        self._created_at = time.monotonic()
        self._name = process_name(role, index)
        self._stamp = (0, 0)
        self._offset = -1
        """The newest start that was shown, and how many of its bytes; -1: all."""
        self._node = ""
        self._begun = False
        self._passed_on = 0
        self._waits = ""

    async def print_once(self, lines: int) -> None:
        """Write what there is. Raises `InspectError`."""
        view = self._newest.view
        location = process_location.locate(view, self._role, self._index)
        if location is None:
            raise InspectError(process_location.why_absent(view, self._role, self._index))
        await self._stream_node_log(location, LogQuestion(self._role, self._index, lines, since_s=self._since()))

    async def follow(self, lines: int) -> int:
        """Write it until the job has ended; returns the exit code. Raises `InspectError` if its node never answers."""
        newest, clock = self._newest, asyncio.get_running_loop().time
        tried, since = "", 0.0
        while True:
            location = process_location.locate(newest.view, self._role, self._index)
            if location is None or location.stamp < self._stamp or (location.stamp == self._stamp and self._offset < 0):
                if (stored := newest.view.verdict) is not None:
                    self._say(f"the job {HOW_ENDED[stored.value.status]}: {stored.value.reason}")
                    return 0
                await self._wait(
                    process_location.why_absent(newest.view, self._role, self._index) if location is None else ""
                )
                continue
            if self._node and location.node != self._node:
                self._say(f"{self._name} moved from {self._node} to {location.node} (generation {location.stamp[0]})")
                self._node = location.node
            offset = self._offset if location.stamp == self._stamp else -1
            since_s = None if self._begun else self._since()
            asked = LogQuestion(
                self._role, self._index, LINES_MAX if self._begun else lines, True, *self._stamp, offset, since_s
            )
            try:
                await self._stream_until_moved(location, asked)
                if self._offset >= 0:  # Its agent ends before it has sent everything.
                    await newest.changes(AGAIN_S)
            except InspectError as error:
                if self._begun or isinstance(error, InspectBusy):  # This passes.
                    tried = ""
                elif tried != location.node:
                    tried, since = location.node, clock()
                if newest.view.verdict is not None:
                    self._stamp, self._offset = location.stamp, -1
                    self._say(f"{error}; the rest is in the log file on that host")
                elif tried and clock() - since >= tries_s(newest.view):
                    raise
                else:
                    await self._wait_before_retry(location, str(error))

    async def _wait_before_retry(self, location: process_location.ProcessLocation, why: str) -> None:
        """Wait `AGAIN_S`, whatever else changes in the store, or until the process is elsewhere; say once for what."""
        clock = asyncio.get_running_loop().time
        until = clock() + AGAIN_S
        while (left_s := until - clock()) > 0:
            await self._wait(why, left_s)
            view = self._newest.view
            if view.verdict is not None or process_location.locate(view, self._role, self._index) != location:
                return

    async def _wait(self, why: str, limit_s: float | None = None) -> None:
        """Wait for a change in the store, and say once for what."""
        outage = self._newest.outage
        why = f"etcd does not answer ({outage})" if outage else why
        if why and why != self._waits:
            self._say(f"{why}; waiting")
        self._waits = why
        await self._newest.changes(limit_s)

    async def _stream_until_moved(self, location: process_location.ProcessLocation, asked: LogQuestion) -> None:
        """Write what one node sends, until it stops sending and the process runs on another node."""
        task = asyncio.create_task(self._stream_node_log(location, asked))
        try:
            while not task.done():
                passed_on = self._passed_on
                await asyncio.wait({task}, timeout=SILENT_S)
                now = process_location.locate(self._newest.view, self._role, self._index)
                if now is not None and now.stamp > location.stamp and passed_on == self._passed_on and not task.done():
                    self._stamp, self._offset = location.stamp, -1
                    return
            await task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _stream_node_log(self, location: process_location.ProcessLocation, asked: LogQuestion) -> None:
        """Write what one node sends."""
        view = self._newest.view
        stored = view.members.get(location.node)
        if stored is None:
            raise InspectBusy(
                f"{self._name} was on node {location.node} of host {location.host}, which is not registered any more"
            )
        secret = view.secret.value if view.secret is not None else None
        async with InspectClient.connect(self._job.job_id, secret, location.node, stored.value) as client:
            async for answer in client.log(asked):
                match answer:
                    case LogStart():
                        self._node, self._begun = location.node, True
                    case LogPiece():
                        self._pass_on(answer)
                    case LogEnd() if answer.over:
                        self._stamp, self._offset = (answer.g, answer.rev), -1

    def _pass_on(self, piece: LogPiece) -> None:
        if piece.missing:
            self._output.note(f"==== {piece.missing} bytes omitted; see the log file ====")
        self._output.feed(piece.data)
        self._passed_on += len(piece.data)
        self._stamp, self._offset = (piece.g, piece.rev), piece.offset

    def _since(self) -> float | None:
        return None if self._since_s is None else self._since_s + time.monotonic() - self._created_at

    def _say(self, text: str) -> None:
        self._output.interrupt()
        self._say_line(text)


def tries_s(view: StoreView) -> float:
    """Seconds for which a node of this job that has never answered is queried."""
    return max(TRIES_S, LEASES * view.spec.value.lease_ttl_s) if view.spec is not None else TRIES_S
