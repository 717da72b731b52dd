"""`elastic-ctl logs` and `stacks`: what a worker writes, and where it is just now, from the node that has it."""

from __future__ import annotations

import argparse
import asyncio
from typing import Final

from elastic.core.model import Verdict
from elastic.core.ps.model import Role
from elastic.core.text import log_name, process_name
from elastic.core.view import StoreView
from elastic.errors import ConfigError
from launcher.job import process_location
from launcher.job.inspect_client import InspectBusy, InspectClient, InspectError, node_of
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line
from launcher.system.stdout import write_stdout
from launcher.system.stdout_watch import while_stdout_is_open
from launcher.text import failure_report
from launcher.text.sanitize import sanitize_line
from launcher.text.terminal_filter import RAW_HELP, TerminalFilter, filter_stream
from launcher.wire.inspect_messages import LINES_MAX, LogEnd, LogPiece, LogQuestion, LogStart, StacksQuestion

LINES: Final = 100
NOT_HERE: Final = 1
AGAIN_S: Final = 1.0
"""Before a node that could not be asked is asked again, unless the process is elsewhere before."""
SILENT_S: Final = 5.0
"""A node that says nothing for so long while the process runs elsewhere is left: its agent stands still."""
TRIES_S: Final = 30.0
"""So long a node is asked that has never answered, while it is registered, or `LEASES` of the job if that is longer."""
LEASES: Final = 2.0
"""One that died is registered until its lease has ended."""


def _logs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rank", metavar="RANK", help="a rank; in a parameter-server job also server.0, heter.0")
    parser.add_argument("--follow", action="store_true", help="go on, over restarts, until the job ends")
    parser.add_argument(
        "--lines", metavar="N", default=str(LINES), help=f"so many lines of what is there (default: {LINES})"
    )
    parser.add_argument("--raw", action="store_true", help=RAW_HELP)


async def _logs(job: NamedJob, asked: argparse.Namespace) -> int:
    role, index = process_location.named(asked.rank)
    lines = _lines(asked.lines)
    async with JobWatch(job) as newest:
        if newest.view.verdict is not None:
            _print_ended(newest.view.verdict.value, newest.view, role, index)
            return NOT_HERE
        if why := process_location.elsewhere(newest.view):
            raise InspectError(why)
        teller = _LogFollower(job, newest, role, index, None if asked.raw else TerminalFilter())
        try:
            if not asked.follow:
                await teller.print_once(lines)
                return 0
            return await while_stdout_is_open(teller.follow(lines))
        finally:
            teller.reset_terminal()


def _lines(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LINES_MAX)) and int(text) <= LINES_MAX):
        raise ConfigError(f"--lines {text}: a number from 0 to {LINES_MAX}")
    return int(text)


class _LogFollower:
    """Passes one log on to stdout, and says on stderr where it comes from when that changes.

    Without a `shown` filter the bytes are passed on as they are.
    """

    def __init__(self, job: NamedJob, newest: JobWatch, role: Role, index: int, shown: TerminalFilter | None) -> None:
        self._job = job
        self._newest = newest
        self._role = role
        self._index = index
        self._shown = shown
        self._name = process_name(role, index)
        self._stamp = (0, 0)
        self._offset = -1
        """The newest start of which something was told, and how much of it; -1: all."""
        self._node = ""
        self._begun = False
        self._whole_line = True
        self._passed_on = 0
        self._waits = ""

    def reset_terminal(self) -> None:
        """End the worker's colours and sequences: what follows is not its own."""
        if self._shown is not None and (rest := self._shown.end()):
            write_stdout(rest)

    async def print_once(self, lines: int) -> None:
        """Tell what is there. Raises `InspectError`."""
        view = self._newest.view
        found = process_location.locate(view, self._role, self._index)
        if found is None:
            raise InspectError(process_location.why_absent(view, self._role, self._index))
        await self._stream_node_log(found, LogQuestion(self._role, self._index, lines))

    async def follow(self, lines: int) -> int:
        """Tell it until the job has ended; the exit code. Raises `InspectError` if its node never answers."""
        newest, clock = self._newest, asyncio.get_running_loop().time
        tried, since = "", 0.0
        while True:
            location = process_location.locate(newest.view, self._role, self._index)
            if location is None or location.stamp < self._stamp or (location.stamp == self._stamp and self._offset < 0):
                if (stored := newest.view.verdict) is not None:
                    self._say(f"the job has {stored.value.status}: {stored.value.reason}")
                    return 0
                await self._wait(
                    process_location.why_absent(newest.view, self._role, self._index) if location is None else ""
                )
                continue
            if self._node and location.node != self._node:
                self._say(f"{self._name} moved from {self._node} to {location.node} (generation {location.stamp[0]})")
                self._node = location.node
            offset = self._offset if location.stamp == self._stamp else -1
            asked = LogQuestion(
                self._role, self._index, LINES_MAX if self._begun else lines, True, *self._stamp, offset
            )
            try:
                await self._stream_until_moved(location, asked)
                if self._offset >= 0:  # Its agent ends, and could not tell all.
                    await newest.changes(AGAIN_S)
            except InspectError as error:
                if self._begun or isinstance(error, InspectBusy):  # This passes.
                    tried = ""
                elif tried != location.node:
                    tried, since = location.node, clock()
                if newest.view.verdict is not None:
                    self._stamp, self._offset = location.stamp, -1
                    self._say(f"{error}; the end of the log is in its file there")
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
        trouble = self._newest.trouble
        why = f"etcd does not answer ({trouble})" if trouble else why
        if why and why != self._waits:
            self._say(f"{why}; waiting")
        self._waits = why
        await self._newest.changes(limit_s)

    async def _stream_until_moved(self, location: process_location.ProcessLocation, asked: LogQuestion) -> None:
        """Pass on what one node tells, unless it says nothing any more while the process runs elsewhere."""
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
        """Pass on what one node tells."""
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
            left_out = f"==== {piece.missing} bytes are left out here, they are in the log's file ====\n"
            self.reset_terminal()
            write_stdout(b"" if self._whole_line else b"\n")
            write_stdout(left_out.encode())
        write_stdout(piece.data if self._shown is None else self._shown.feed(piece.data))
        self._passed_on += len(piece.data)
        self._stamp, self._offset = (piece.g, piece.rev), piece.offset
        self._whole_line = piece.data.endswith(b"\n")

    def _say(self, text: str) -> None:
        self.reset_terminal()
        write_stderr_line(text, WHO)


def tries_s(view: StoreView) -> float:
    """So long a node of this job is asked that has never answered, in seconds."""
    return max(TRIES_S, LEASES * view.spec.value.lease_ttl_s) if view.spec is not None else TRIES_S


def _print_ended(verdict: Verdict, view: StoreView, role: Role, index: int) -> None:
    """The job has ended, and so have its agents: say where the logs are, and what the verdict keeps."""
    lines = [f"the job has {verdict.status}, and its agents have ended; {_last_location_text(view, role, index)}"]
    if verdict.cause is not None:
        lines += failure_report.failure_lines(verdict.cause)
    write(map(sanitize_line, lines))


def _last_location_text(view: StoreView, role: Role, index: int) -> str:
    if why := process_location.elsewhere(view):
        return why
    location = process_location.locate(view, role, index)
    if location is None:
        return process_location.why_absent(view, role, index)
    return (
        f"the log of {process_name(role, index)} is {log_name(role, index)} in the log folder of host {location.host}"
    )


def _stacks_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rank", metavar="RANK", help="a rank; in a parameter-server job also server.0, heter.0")
    parser.add_argument("--raw", action="store_true", help=RAW_HELP)


async def _stacks(job: NamedJob, asked: argparse.Namespace) -> int:
    role, index = process_location.named(asked.rank)
    async with await node_of(job, role, index, "none has stacks") as one:
        answer = await one.stacks(StacksQuestion(role, index))
    write_stderr_line(answer.how, WHO)
    text = (answer.text.removesuffix("\n") + "\n").encode()
    write_stdout(text if asked.raw else filter_stream(text))
    return 0


LOGS: Final = Subcommand(
    "logs", "show what a worker has written, and what it writes, from the node that has it", _logs_arguments, _logs
)
STACKS: Final = Subcommand("stacks", "show the stacks of a worker's threads, now", _stacks_arguments, _stacks)
