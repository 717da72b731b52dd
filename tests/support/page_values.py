"""What the page of a job shows, made of values."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from elastic.core.model import Verdict
from launcher.history.job_report import build_report
from launcher.history.training_curve import TrainingCurve
from launcher.job.overview import JobOverview
from launcher.job.status import JobStatus, describe
from launcher.web.html import embedded
from launcher.web.page_data import sections
from launcher.wire.inspect_messages import WorkerState
from tests.support.inspect_documents import window, worker
from tests.support.job_reports import FIRST, LOST, course
from tests.support.job_status import generation, view

NOW = 100.0
POINTS = course((100, 20.0, 1), (400, 49.5, 1), (390, 53.0, 2))


def status(*nodes: str, verdict: Verdict | None = None) -> JobStatus:
    found = describe(view(*nodes, newest=generation(2, *nodes), go=2), "j")
    return replace(found, verdict=verdict)


def picture(*steps: int, verdict: Verdict | None = None, loss: float | None = 0.5) -> JobOverview:
    workers = [
        replace(worker(0, WorkerState.STEPPING, step=step), step_age_s=1.0, metrics={"loss": loss}) for step in steps
    ]
    return JobOverview(
        status=status("a-1", verdict=verdict),
        snapshots={"a-1": window(*workers)} if steps else {},
        unreachable={},
        asked_at=NOW,
    )


def told(
    found: JobOverview, *events: Any, points: TrainingCurve = POINTS, verdict: Verdict | None = None
) -> dict[str, Any]:
    everything = events or (*FIRST, *LOST)
    story = build_report(everything, points, now=NOW, verdict=verdict)
    plain = dict(sections(found, story, points, everything, NOW))
    again: dict[str, Any] = json.loads(embedded(plain))
    return again
