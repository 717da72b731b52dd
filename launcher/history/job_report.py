"""The report of a job, from its history and its training curve: generations, downtimes, goodput (pure).

It covers the newest run of the job, from its command to its final status, or to now. Times are the wall clocks of the
nodes that wrote the events, seconds since the epoch; if they differ, a downtime between two nodes is wrong by as much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from elastic.core.model import ChangeReason, Verdict
from launcher.history.downtime import Downtime, GenerationRecord, pauses
from launcher.history.events import KEPT, EventKind, FailureRecord, HistoryEvent
from launcher.history.goodput import PauseInterval, goodput
from launcher.history.training_curve import TrainingCurve

OF_GENERATIONS: Final = (EventKind.GENERATION, EventKind.GO, EventKind.START, EventKind.RECOVERY)
"""Events without which there is no generation to report."""
NOTHING: Final = HistoryEvent(at=0.0, node="", what=EventKind.ACTION, g=0)
"""Has the fields of a generation of which an event is missing."""


class GenerationReport(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. Unknown fields are None, or empty.

    `nodes` by M_id, and `more` further ones; `world` workers in all. `published_at` is when it was agreed, `go_at` when
    its workers could start, `first_step_at` when the downtime before it was over, `ended_at` when the downtime after it
    began, or the job ended. `phases` are those of its recovery, or first start (`start`), in seconds, in their order;
    `complete`: its end is known. `steps` were made in it, up to `last_step`; `again` of them were repeated. `failure`
    ended it.
    """

    g: int
    why: ChangeReason | None = None
    reason: str = ""
    nodes: tuple[str, ...] = ()
    more: int = 0
    world: int | None = None
    published_at: float | None = None
    go_at: float | None = None
    first_step_at: float | None = None
    ended_at: float | None = None
    start: bool = False
    phases: Mapping[str, float] = msgspec.field(default_factory=dict)
    complete: bool | None = None
    text: str = ""
    restored_step: int | None = None
    last_step: int | None = None
    steps: int | None = None
    again: int | None = None
    failure: FailureRecord | None = None


class JobTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums: of `wall_s` no step that counts was made in `paused_s` and `again_s`.

    `restarts` counts the generations that ran after another one, by reason. `step` is the highest that is known;
    `again` is the number of steps that were lost and have to be repeated.
    """

    wall_s: float = 0.0
    paused_s: float = 0.0
    again_s: float = 0.0
    restarts: Mapping[str, int] = msgspec.field(default_factory=dict)
    step: int | None = None
    again: int = 0


class JobReport(msgspec.Struct, frozen=True, kw_only=True):
    """A job from `began` until `until`; both are None if nothing is known about it.

    `since` is set when the beginning is missing, because only the newest events are kept: the whole report, including
    goodput, begins there. `first_failure` is the first one of the run.
    """

    began: float | None = None
    until: float | None = None
    since: float | None = None
    goodput: float | None = None
    totals: JobTotals = JobTotals()
    generations: tuple[GenerationReport, ...] = ()
    pauses: tuple[Downtime, ...] = ()
    first_failure: FailureRecord | None = None


def build_report(
    events: Sequence[HistoryEvent],
    course: TrainingCurve | None = None,
    *,
    now: float,
    verdict: Verdict | None = None,
    has_members: bool = True,
) -> JobReport:
    """Return the report of a job's events, oldest first.

    `has_members`: a member is registered; without members no step completes.
    """
    points = course.points if course is not None else ()
    run_events = _newest_run(events)
    ended_at = _ended_at(run_events, verdict)
    numbers = sorted({event.g for event in run_events if event.what in OF_GENERATIONS})
    if not numbers:
        return JobReport()
    notes = [
        GenerationRecord(
            g,
            [event for event in run_events if event.g == g and event.what in OF_GENERATIONS],
            [point for point in points if point.g == g],
        )
        for g in numbers
    ]
    until = ended_at if ended_at is not None else max(now, run_events[-1].at)
    stops = pauses(notes, until, ended=ended_at is not None, has_members=has_members)
    first = run_events[0]
    gone = len(events) >= KEPT and first is events[0] and (first.what is not EventKind.GENERATION or first.g != 1)
    began = first.at if gone else min(first.at, stops[0].began)
    chapters = _chapters(notes, stops, run_events, ended_at)
    share = goodput(began, until, (stop.pause for stop in stops))
    return JobReport(
        began=began,
        until=until,
        since=began if gone else None,
        goodput=share,
        totals=_totals(chapters, stops, began, until, share or 0.0),
        generations=chapters,
        pauses=tuple(stops),
        first_failure=next((chapter.failure for chapter in chapters if chapter.failure is not None), None),
    )


def _newest_run(events: Sequence[HistoryEvent]) -> Sequence[HistoryEvent]:
    """Return the events after the last final status that another generation has followed.

    The number of the run decides, if it is known: a final status may precede the last generation, or be missing.
    """
    begins, ended = 0, False
    run: int | None = None
    for at, event in enumerate(events):
        if event.what is EventKind.VERDICT:
            ended = True
        elif event.what is EventKind.GENERATION:
            if ended if None in (run, event.run) else run != event.run:
                begins, ended = at, False
            run = event.run
    return events[begins:]


def _ended_at(events: Sequence[HistoryEvent], verdict: Verdict | None) -> float | None:
    """Return when the job ended. The final status exists without its event if its writer has failed."""
    run = next((event.run for event in reversed(events) if event.run is not None), None)
    if verdict is not None and run in (None, verdict.run):
        return verdict.at
    return next((event.at for event in reversed(events) if event.what is EventKind.VERDICT), None)


def _chapters(
    notes: Sequence[GenerationRecord],
    stops: Sequence[Downtime],
    events: Sequence[HistoryEvent],
    job_ended_at: float | None,
) -> tuple[GenerationReport, ...]:
    failures = {event.failure.g: event.failure for event in reversed(events) if event.failure is not None}
    stopped = {stop.g: stop for stop in stops}
    chapters = []
    for record, after in zip(notes, [*notes[1:], None], strict=True):
        stop = stopped.get(record.g)
        ended_at = job_ended_at
        if after is not None:
            ended_at = stopped[after.g].began if after.g in stopped else after.first_at
        world, recovery = (event or NOTHING for event in (record.world, record.recovery))
        last_step = record.last_step(after)
        chapters.append(
            GenerationReport(
                g=record.g,
                why=record.why,
                reason=world.reason,
                nodes=world.nodes,
                more=world.more,
                world=world.world,
                published_at=record.made.at if record.made is not None else None,
                go_at=record.go.at if record.go is not None else None,
                first_step_at=record.first_step_at,
                ended_at=ended_at,
                start=recovery.what is EventKind.START,
                phases=record.phases,
                complete=recovery.complete,
                text=recovery.text,
                restored_step=recovery.restored_step,
                last_step=last_step,
                steps=record.steps_until(last_step),
                again=stop.again if stop is not None else None,
                failure=failures.get(record.g),
            )
        )
    return tuple(chapters)


def _totals(
    chapters: Sequence[GenerationReport], stops: Sequence[Downtime], began: float, until: float, share: float
) -> JobTotals:
    """`share` is the goodput."""
    wall_s = max(until - began, 0.0)
    running = goodput(began, until, (PauseInterval(stop.began, stop.ended) for stop in stops)) or 0.0
    ran = [chapter for chapter in chapters[1:] if chapter.go_at is not None or chapter.phases]
    return JobTotals(
        wall_s=round(wall_s, 3),
        paused_s=round(wall_s * (1 - running), 3),
        again_s=round(wall_s * (running - share), 3),
        restarts=dict(Counter(str(chapter.why) for chapter in ran if chapter.why is not None)),
        step=max((chapter.last_step for chapter in chapters if chapter.last_step is not None), default=None),
        again=sum(stop.again for stop in stops),
    )
