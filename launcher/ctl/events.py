"""`elastic-ctl events`: what happened to a job, and with `--follow` what happens."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from elastic.core.kv import KeyRange, KeyValue
from launcher.ctl.phase_bar import bar
from launcher.history import events as history_events
from launcher.history.events import EventKind, HistoryEvent
from launcher.job.history import event_line, read_report, report_line
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line
from launcher.system.stdout import print_result
from launcher.system.stdout_watch import while_stdout_is_open

INDENT: Final = "    "
VERDICT_LIMIT_S: Final = 2.0
"""So long after the verdict its event is waited for; whoever writes it may be gone."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per line, for scripts")
    parser.add_argument("--follow", action="store_true", help="go on with what happens, until the job has ended")


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    await job.view(everything=True)  # Raises if there is no such job, or one that cannot be read.
    listing = await job.store.list(KeyRange.prefix(job.keys.events))
    _show(history_events.read(job.keys, listing.entries), asked.json)
    if asked.follow:
        await while_stdout_is_open(_follow(job, listing.entries, asked.json))
    if not asked.json and (asked.follow or sys.stdout.isatty()):
        report, *_ = await read_report(job.store, job.keys, time.time())
        write(filter(None, [report_line(report)]))
    return 0


async def _follow(job: NamedJob, listed: Sequence[KeyValue], as_json: bool) -> None:
    """Show events that come after those that are listed, until the job has its verdict, and that was shown.

    The store may go away, come back, or come back empty.
    """
    keys, shown = job.keys, {entry.key for entry in listed}
    ended = _has_ended(history_events.read(keys, listed), before=False)
    until: float | None = None
    ranges = (KeyRange.prefix(keys.events), KeyRange.key(keys.verdict))
    async with JobWatch(job, partial(write_stderr_line, who=WHO), ranges) as watch:
        while await watch.changes(None if until is None else max(until - time.monotonic(), 0.0)):
            entries = watch.entries or {}
            new = history_events.read(keys, [entry for key, entry in entries.items() if key not in shown])
            shown = set(entries)
            _show(new, as_json)
            ended = _has_ended(new, before=ended)
            if keys.verdict not in entries:
                until = None
            elif ended:
                return
            else:
                until = until or time.monotonic() + VERDICT_LIMIT_S


def _has_ended(events: Sequence[HistoryEvent], *, before: bool) -> bool:
    """Whether the newest of these events is a verdict; one of a generation after it is of another run of the job."""
    told = (event.what for event in reversed(events) if event.what in (EventKind.VERDICT, EventKind.GENERATION))
    return next((what is EventKind.VERDICT for what in told), before)


def _show(events: Sequence[HistoryEvent], as_json: bool) -> None:
    if as_json:
        write(msgspec.json.encode(event).decode() for event in events)
    elif events and sys.stdout.isatty():
        _draw(events)
    else:
        write(map(event_line, events))


def _draw(events: Iterable[HistoryEvent]) -> None:
    """Lines, and below each start and recovery a bar of its phases."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    options = console.options
    with console.capture() as drawn:  # It would end the process by itself where nobody reads.
        for event in events:
            console.print(Text(event_line(event)), soft_wrap=True)
            if event.what in (EventKind.START, EventKind.RECOVERY) and sum(event.phases.values()) > 0:
                width = options.max_width - len(INDENT) - len(" 100000.00 s")
                if width > 0:
                    drawing = bar(event.phases, width, ascii_only=options.ascii_only)
                    console.print(Padding(drawing, (0, 0, 0, len(INDENT)), expand=False))
    print_result(drawn.get())


COMMAND: Final = Subcommand(
    "events", "show what happened to a job, oldest first: who, what, when, why", _arguments, _run
)
