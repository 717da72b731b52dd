"""Reads the history of a job from the store, builds its report (`launcher.history.job_report`), and formats both."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

from elastic._text import counted, time_text
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.view_reader import ViewReader
from elastic.store.protocol import Store
from launcher.history import events, training_curve
from launcher.history.job_report import JobReport, build_report
from launcher.history.training_curve import TrainingCurve
from launcher.text.sanitize import sanitize_line

LABELS: Final = {
    events.EventKind.GENERATION: "formed",
    events.EventKind.GO: "start signal",
    events.EventKind.VERDICT: "final status",
}
"""The words for the kinds of events whose names in the store are not those that users read."""


def event_line(event: events.HistoryEvent) -> str:
    """Format an event as one line; before the first generation it names none."""
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    generation = f"generation {event.g} " if event.g else ""
    kind = LABELS.get(event.what, event.what)
    return f"{at}  {sanitize_line(event.node)}  {generation}{kind}: {sanitize_line(event.text)}"


async def read_history(store: Store, keys: JobKeys) -> list[events.HistoryEvent]:
    """Read the history of a job, oldest first. Raises `StoreError`."""
    listing = await store.list(KeyRange.prefix(keys.events))
    return events.read(keys, listing.entries)


async def read_report(
    store: Store, keys: JobKeys, now: float
) -> tuple[JobReport, list[events.HistoryEvent], TrainingCurve | None]:
    """Return the report of a job so far, and the events and the training curve that it is built from.

    `now` is a wall clock, seconds since the epoch. Raises `StoreError`.
    """
    past, written, verdict, members = await asyncio.gather(
        read_history(store, keys),
        store.list(KeyRange.key(keys.curve)),
        store.list(KeyRange.key(keys.verdict)),
        store.list(KeyRange.prefix(keys.members), keys_only=True, limit=1),
    )
    points = training_curve.read(written.entries[0].value) if written.entries else None
    view = ViewReader(keys).read({entry.key: entry for entry in verdict.entries}, verdict.revision, complete=False)
    ended = view.verdict.value if view.verdict is not None else None
    report = build_report(past, points, now=now, verdict=ended, has_members=bool(members.entries))
    return report, past, points


def report_line(report: JobReport) -> str:
    """Format the goodput, and where the rest of the time went, as one line; "" without any data."""
    if report.goodput is None:
        return ""
    totals = report.totals
    times = f" in {counted(len(report.pauses), 'period')}" if report.pauses else ""
    parts = [f"{time_text(totals.paused_s, 1)} of downtime{times}"]
    if totals.again:
        made = sum(pause.made for pause in report.pauses)
        lost = "" if made == totals.again else f" lost, {made} of them"
        parts.append(f"{counted(totals.again, 'step')}{lost} repeated ({time_text(totals.again_s, 1)})")
    since = "" if report.since is None else ", since the oldest retained event"
    return f"goodput {100 * report.goodput:.1f} % of {time_text(totals.wall_s, 1)}{since}: {', '.join(parts)}"
