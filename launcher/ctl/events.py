"""`elastic-ctl events`: the event log of a job, and with `--follow` new events."""

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
from launcher.job import common_flags
from launcher.job.common_flags import wants_json
from launcher.job.history import event_line, read_report, report_line
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line
from launcher.system.stdout import print_result
from launcher.system.stdout_watch import while_stdout_is_open

EVENTS_MAX: Final = 100_000
"""More than a job keeps."""
INDENT: Final = "    "
VERDICT_LIMIT_S: Final = 2.0
"""How long the event of the final status is awaited after it; the agent that writes the event may have exited."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    common_flags.add_output(parser, "json: one JSON object per line, for scripts")
    common_flags.add_follow(parser, "show new events, too, until the job has ended")
    common_flags.add_lines(parser, EVENTS_MAX, None, "show only the newest N events (default: all)")


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    await job.view(everything=True)  # Raises if the job does not exist or cannot be read.
    listing = await job.store.list(KeyRange.prefix(job.keys.events))
    as_json = wants_json(asked)
    events = history_events.read(job.keys, listing.entries)
    _show(events if asked.lines is None else events[max(len(events) - asked.lines, 0) :], as_json)
    if asked.follow:
        await while_stdout_is_open(_follow(job, listing.entries, as_json))
    if not as_json and (asked.follow or sys.stdout.isatty()):
        report, *_ = await read_report(job.store, job.keys, time.time())
        write(filter(None, [report_line(report)]))
    return 0


async def _follow(job: NamedJob, listed: Sequence[KeyValue], as_json: bool) -> None:
    """Show events that are newer than those listed, up to and including the final status.

    etcd may become unavailable, return, or return without its data.
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
    """Return whether the newest of these events is a final status; a later generation belongs to another run."""
    decisive = (event.what for event in reversed(events) if event.what in (EventKind.VERDICT, EventKind.GENERATION))
    return next((what is EventKind.VERDICT for what in decisive), before)


def _show(events: Sequence[HistoryEvent], as_json: bool) -> None:
    if as_json:
        write(msgspec.json.encode(event).decode() for event in events)
    elif events and sys.stdout.isatty():
        _draw(events)
    else:
        write(map(event_line, events))


def _draw(events: Iterable[HistoryEvent]) -> None:
    """Draw a line for each event, and below each start and recovery a bar of its phases."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    options = console.options
    with console.capture() as drawn:  # Otherwise rich ends the process when stdout is closed.
        for event in events:
            console.print(Text(event_line(event)), soft_wrap=True)
            if event.what in (EventKind.START, EventKind.RECOVERY) and sum(event.phases.values()) > 0:
                width = options.max_width - len(INDENT) - len(" 100000.00 s")
                if width > 0:
                    drawing = bar(event.phases, width, ascii_only=options.ascii_only)
                    console.print(Padding(drawing, (0, 0, 0, len(INDENT)), expand=False))
    print_result(drawn.get())


COMMAND: Final = Subcommand(
    "events",
    "show what happened to a job, oldest first: who, what, when, why",
    _arguments,
    _run,
    examples=(
        ("Show the event log", "elastic-ctl events"),
        ("Show new events until the job ends", "elastic-ctl events --follow"),
    ),
)
