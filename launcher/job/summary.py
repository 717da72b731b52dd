"""Reads the story of a job (`launcher.history.job_report`) from the store, and says it in one line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from elastic._text import counted, time_text
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.view_reader import decode
from elastic.errors import DocumentError
from elastic.store.protocol import Store
from launcher.history import training_curve
from launcher.history.job_report import JobReport, build_report
from launcher.job.history import read_history


async def read_report(store: Store, keys: JobKeys, now: float) -> JobReport:
    """The story of a job as it stands, from its documents for people. `now` is a wall clock. Raises `StoreError`."""
    events, written, verdict, members = await asyncio.gather(
        read_history(store, keys),
        store.list(KeyRange.key(keys.course)),
        store.list(KeyRange.key(keys.verdict)),
        store.list(KeyRange.prefix(keys.members), keys_only=True, limit=1),
    )
    points = training_curve.read(written.entries[0].value) if written.entries else None
    ended = None
    with suppress(DocumentError):
        ended = decode(keys, keys.verdict, verdict.entries[0].value) if verdict.entries else None
    return build_report(events, points, now=now, verdict=ended, has_members=bool(members.entries))


def report_line(report: JobReport) -> str:
    """One line for people: goodput, and where the rest of the time went. "" if there is nothing to tell."""
    if report.goodput is None:
        return ""
    totals = report.totals
    parts = [f"{time_text(totals.paused_s, 1)} in {counted(len(report.pauses), 'pause')}"]
    if totals.again:
        made = sum(pause.made for pause in report.pauses)
        lost = "" if made == totals.again else f" lost, {made} of them"
        parts.append(f"{counted(totals.again, 'step')}{lost} made again ({time_text(totals.again_s, 1)})")
    since = "" if report.since is None else ", counted from the oldest event that is kept"
    return f"goodput {100 * report.goodput:.1f} % of {time_text(totals.wall_s, 1)}{since}: {', '.join(parts)}"
