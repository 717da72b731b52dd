"""Reads the story of a job (`launcher.history.job_report`) from the store, and says it in one line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

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
    pauses = f"{len(report.pauses)} pause{'' if len(report.pauses) == 1 else 's'}"
    parts = [f"{_length(totals.paused_s)} in {pauses}"]
    if totals.again:
        made = sum(pause.made for pause in report.pauses)
        lost = "" if made == totals.again else f" lost, {made} of them"
        parts.append(
            f"{totals.again} step{'' if totals.again == 1 else 's'}{lost} made again ({_length(totals.again_s)})"
        )
    since = "" if report.since is None else ", counted from the oldest event that is kept"
    return f"goodput {100 * report.goodput:.1f} % of {_length(totals.wall_s)}{since}: {', '.join(parts)}"


def _length(seconds: float) -> str:
    """A length of time: "2.5 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
