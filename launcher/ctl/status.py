"""`elastic-ctl status`: the state of a job, once or until it ends."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from elastic.core.view import StoreView
from launcher.ctl import table
from launcher.ctl.exit_codes import exit_code_of
from launcher.job import common_flags, status_text
from launcher.job.common_flags import WATCH_S_MIN, wants_json
from launcher.job.listing import state_of
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


def _arguments(parser: argparse.ArgumentParser) -> None:
    common_flags.add_output(parser, "json: one JSON object, for scripts; with --watch one per line")
    common_flags.add_watch(parser, "show the job again at each change and after this time, until the job ends")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 0 if the job runs or has completed, 5 if it has failed, 6 if it does not run (yet), 7 if it "
        "was stopped, and 1 if there is no such job",
    )


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    if asked.watch is not None:
        view = await while_stdout_is_open(_watch(job, asked.watch, as_json=wants_json(asked)))
        return _exit_code(view) if asked.exit_code else 0
    view = await job.view()
    overview = await overview_of(job, view)
    if wants_json(asked):
        _write_json(overview)
    elif sys.stdout.isatty():
        table.draw(_render_rich(overview))
    else:
        write(_plain(overview))
    return _exit_code(view) if asked.exit_code else 0


def _exit_code(view: StoreView) -> int:
    return exit_code_of(state_of(view, len(view.members)))


def _write_json(found: JobOverview) -> None:
    write((msgspec.json.encode(found.as_json).decode(),))


async def _watch(job: NamedJob, every_s: float, *, as_json: bool) -> StoreView:
    """Show the job at each change of it and every `every_s`, until it has ended; return the last view."""
    async with JobWatch(job) as newest:
        if sys.stdout.isatty() and not as_json:
            from rich.console import Console
            from rich.live import Live

            with Live(console=Console(), auto_refresh=False) as live:
                async for overview in _looks(job, newest, every_s):
                    live.update(_render_rich(overview, newest.outage), refresh=True)
            return newest.view
        before = None
        async for overview in _looks(job, newest, every_s):
            if as_json:
                _write_json(overview)
            elif (now := _change_key(overview, newest.outage)) != before:
                at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
                write(([] if before is None else [""]) + [f"--- {at}", *_plain(overview, newest.outage)])
                before = now
    return newest.view


async def _looks(job: NamedJob, newest: JobWatch, every_s: float) -> AsyncIterator[JobOverview]:
    """Yield the job at each change and every `every_s`; the last overview has the final status."""
    while True:
        overview = await overview_of(job, newest.view)
        yield overview
        if overview.status.verdict is not None:
            return
        await asyncio.sleep(WATCH_S_MIN)
        await newest.changes(every_s - WATCH_S_MIN)


def _change_key(found: JobOverview, outage: str) -> object:
    """Everything whose change is worth a new block in a file: not the steps, nor the passing of time."""
    told = [(node.node, node.state, node.note) for node in found.status.nodes]
    head = msgspec.structs.replace(found.status, nodes=(), saved=None)
    return head, told, frozenset(found.unreachable), outage


def _header_lines(found: JobOverview, outage: str) -> list[str]:
    lines = status_text.head_lines(found.status, time.time())
    return [*lines, f"etcd does not answer ({outage}); this is its last known state"] if outage else lines


def _plain(found: JobOverview, outage: str = "") -> list[str]:
    """Return the lines in plain columns, for files and other programs."""
    lines = _header_lines(found, outage)
    if found.status.nodes:
        lines += table.render_plain(status_text.COLUMNS, status_text.rows(found.status, found.snapshots))
    return lines + status_text.foot_lines(found.status, found.unreachable, found.snapshots)


def _render_rich(overview: JobOverview, outage: str = "") -> RenderableType:
    """Return the lines for a terminal."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in _header_lines(overview, outage)]
    if overview.status.nodes:
        rows = status_text.rows(overview.status, overview.snapshots)
        styles = [STYLES.get(node.state, "") for node in overview.status.nodes]
        parts.append(table.render_rich(status_text.COLUMNS, rows, styles, status_text.NUMBERS))
    parts += [Text(line) for line in status_text.foot_lines(overview.status, overview.unreachable, overview.snapshots)]
    return Group(*parts)


COMMAND: Final = Subcommand(
    "status",
    "show a job: its generation, its nodes, and what it waits for",
    _arguments,
    _run,
    examples=(
        ("Show the job now", "elastic-ctl status --elastic-server 10.0.0.5:2379 --job-id j1"),
        ("Show it until it ends", "elastic-ctl status --watch"),
    ),
)
