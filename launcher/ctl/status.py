"""`elastic-ctl status`: a job as it stands, once or for as long as one looks."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from launcher.config import readers
from launcher.config.durations import METAVAR, duration, duration_text
from launcher.ctl import table
from launcher.job import status_text
from launcher.job.named_job import NamedJob, Subcommand, write
from launcher.job.overview import JobOverview, overview_of
from launcher.job.status import NodeState
from launcher.job.watch import JobWatch
from launcher.system.stdout_watch import while_stdout_is_open

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES: Final = {
    NodeState.RUNNING: "green",
    NodeState.DONE: "green",
    NodeState.STOPPING: "yellow",
    NodeState.WAITING: "yellow",
    NodeState.DRAINING: "yellow",
    NodeState.LOST: "bold red",
}
WATCH_S: Final = 2.0
WATCH_S_MIN: Final = 0.2
"""No more often, whatever changes: each time all nodes are asked."""
WATCH_S_MAX: Final = 86_400.0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts; with --watch one per line")
    parser.add_argument(
        "--watch",
        nargs="?",
        const=WATCH_S,
        type=readers.argument(duration(WATCH_S_MIN, WATCH_S_MAX)),
        metavar=METAVAR,
        help=f"go on until the job ends: at each change, and once in this time (default: {duration_text(WATCH_S)})",
    )


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    if asked.watch is not None:
        return await while_stdout_is_open(_watch(job, asked.watch, as_json=asked.json))
    overview = await overview_of(job, await job.view())
    if asked.json:
        _write_json(overview)
    elif sys.stdout.isatty():
        table.draw(_render_rich(overview))
    else:
        write(_plain(overview))
    return 0


def _write_json(found: JobOverview) -> None:
    write((msgspec.json.encode(found.as_json).decode(),))


async def _watch(job: NamedJob, every_s: float, *, as_json: bool) -> int:
    """Show the job at each change of it and every `every_s`, until it has ended."""
    async with JobWatch(job) as newest:
        if sys.stdout.isatty() and not as_json:
            from rich.console import Console
            from rich.live import Live

            with Live(console=Console(), auto_refresh=False) as live:
                async for overview in _looks(job, newest, every_s):
                    live.update(_render_rich(overview, newest.trouble), refresh=True)
            return 0
        before = None
        async for overview in _looks(job, newest, every_s):
            if as_json:
                _write_json(overview)
            elif (now := _change_key(overview, newest.trouble)) != before:
                at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                write(([] if before is None else [""]) + [f"--- {at}", *_plain(overview, newest.trouble)])
                before = now
    return 0


async def _looks(job: NamedJob, newest: JobWatch, every_s: float) -> AsyncIterator[JobOverview]:
    """The job as it stands, at each change and every `every_s`; the last one has its verdict."""
    while True:
        overview = await overview_of(job, newest.view)
        yield overview
        if overview.status.verdict is not None:
            return
        await asyncio.sleep(WATCH_S_MIN)
        await newest.changes(every_s - WATCH_S_MIN)


def _change_key(found: JobOverview, trouble: str) -> object:
    """What people are told anew where nothing is drawn over: not each step, nor that it takes time."""
    told = [(node.node, node.state, node.note) for node in found.status.nodes]
    head = msgspec.structs.replace(found.status, nodes=(), saved=None)
    return head, told, frozenset(found.unreachable), trouble


def _header_lines(found: JobOverview, trouble: str) -> list[str]:
    lines = status_text.head_lines(found.status, time.time())
    return [*lines, f"etcd does not answer ({trouble}); this is what it said last"] if trouble else lines


def _plain(found: JobOverview, trouble: str = "") -> list[str]:
    """Everything in plain columns, for files and other programs."""
    lines = _header_lines(found, trouble)
    if found.status.nodes:
        lines += table.render_plain(status_text.COLUMNS, status_text.rows(found.status, found.snapshots))
    return lines + status_text.foot_lines(found.status, found.unreachable, found.snapshots)


def _render_rich(overview: JobOverview, trouble: str = "") -> RenderableType:
    """The same for a terminal."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _header_lines(overview, trouble)]
    if overview.status.nodes:
        rows = status_text.rows(overview.status, overview.snapshots)
        styles = [STYLES.get(node.state, "") for node in overview.status.nodes]
        parts.append(table.render_rich(status_text.COLUMNS, rows, styles, status_text.NUMBERS))
    parts += [Text(line) for line in status_text.foot_lines(overview.status, overview.unreachable, overview.snapshots)]
    return Group(*parts)


COMMAND: Final = Subcommand("status", "show a job: its generation, its nodes, and what it waits for", _arguments, _run)
