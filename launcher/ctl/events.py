"""`elastic-ctl events`: what happened to a job, and with `--follow` what happens."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, KeyValue
from launcher.ctl.phase_bar import bar
from launcher.history import events as history_events
from launcher.history.events import EventKind, HistoryEvent
from launcher.job.history import event_line
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.job.summary import read_report, report_line
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
    await job.check_readable()
    listing = await job.store.list(KeyRange.prefix(job.keys.events))
    past = history_events.read(job.keys, listing.entries)
    if not past:
        await job.view()  # Raises if there is no such job; one that has just begun has no events.
    _show(past, asked.json)
    if asked.follow:
        await while_stdout_is_open(_EventFollower(job, listing.entries, asked.json).until_the_end())
    if not asked.json and (asked.follow or sys.stdout.isatty()):
        line = report_line(await read_report(job.store, job.keys, time.time()))
        write([line] if line else [])
    return 0


class _EventFollower:
    """Shows events that come after those that were shown; the store may go away, come back, or come back empty."""

    def __init__(self, job: NamedJob, shown: Iterable[KeyValue], as_json: bool) -> None:
        self._keys: JobKeys = job.keys
        self._shown = {entry.key for entry in shown}
        self._json = as_json
        self._verdict_told = False
        self._note(history_events.read(job.keys, shown))
        ranges = (KeyRange.prefix(job.keys.events), KeyRange.key(job.keys.verdict))
        self._watch = JobWatch(job, partial(write_stderr_line, who=WHO), ranges)

    async def until_the_end(self) -> None:
        """Return when the job has its verdict, and that was shown."""
        async with self._watch as watch:
            ended_at: float | None = None
            limit_s: float | None = None
            while await watch.changes(limit_s):
                entries = watch.entries or {}
                self._print_new_events(entries)
                if self._keys.verdict not in entries:
                    ended_at = limit_s = None
                elif self._verdict_told:
                    return
                else:
                    ended_at = ended_at or time.monotonic()
                    limit_s = max(ended_at + VERDICT_LIMIT_S - time.monotonic(), 0.0)

    def _print_new_events(self, entries: Mapping[str, KeyValue]) -> None:
        new = [entry for key, entry in entries.items() if key not in self._shown and key != self._keys.verdict]
        self._shown.intersection_update(entries)
        self._shown.update(entry.key for entry in new)
        events = history_events.read(self._keys, new)
        _show(events, self._json)
        self._note(events)

    def _note(self, events: Iterable[HistoryEvent]) -> None:
        for event in events:
            if event.what in (
                EventKind.VERDICT,
                EventKind.GENERATION,
            ):  # One after a verdict is another run of the job.
                self._verdict_told = event.what is EventKind.VERDICT


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
