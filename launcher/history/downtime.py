"""The downtimes of a job, from its history and its training curve (pure).

A downtime is a pause as in `launcher.history.goodput`: it lasts from the last step before (or the first symptom) to the
first step after. A recovery records both. If no surviving node recorded them, a downtime is counted

- from the last step of the previous generation in the curve; otherwise from the new generation
- until the first step of its generation in the curve; without one until its workers got their start signal, if the
  script is not known to report steps and another generation has followed; otherwise as long as the generation lasts

and a job without a final status whose newest step is old has been down since then. In a parameter-server job only the
first start is a downtime: a recovery there concerns some tasks, and the others continue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

import msgspec

from elastic.core.model import ChangeReason
from launcher.history.events import EventKind, HistoryEvent
from launcher.history.goodput import PauseInterval
from launcher.history.recovery import PhaseEnd
from launcher.history.training_curve import CurvePoint

STALE_S: Final = 150.0
"""The curve is written once in 60 s: a newest step that is older than this is the last one."""
STALE_STEPS: Final = 5.0
"""And older than this number of steps, if a step takes longer."""


class Downtime(msgspec.Struct, frozen=True, kw_only=True):
    """A time without a step, before generation `g`: wall clocks, seconds since the epoch.

    `again` steps were lost in it, and `made` of them have been repeated since; that took `again_s`, derived from
    the usual step time and bounded by the available time. `open`: it has not ended.
    """

    g: int
    why: ChangeReason | None
    began: float
    ended: float
    again: int = 0
    made: int = 0
    again_s: float = 0.0
    open: bool = False

    @property
    def pause(self) -> PauseInterval:
        """The downtime as goodput counts it."""
        return PauseInterval(self.began, self.ended, self.again_s)


class GenerationRecord:
    """What is known of one generation: its events, in their order, and its points of the curve."""

    def __init__(self, g: int, events: Sequence[HistoryEvent], points: Sequence[CurvePoint]) -> None:
        """`events`, at least one, and `points` are those of generation `g`."""
        worlds = [event for event in events if event.what is EventKind.GENERATION]
        whole = [  # A recovery with a revision concerns some tasks only.
            event
            for event in events
            if event.what is EventKind.START or (event.what is EventKind.RECOVERY and not event.rev)
        ]
        self.g = g
        self.points = points
        self.made = worlds[0] if worlds else None
        self.world = worlds[-1] if worlds else None
        self.go = next((event for event in events if event.what is EventKind.GO), None)
        self.recovery = whole[0] if whole else None
        self.tasks = any(event.rev for event in events)
        self.first_at = events[0].at

    @property
    def phases(self) -> Mapping[str, float]:
        """The phases of its recovery, or first start."""
        return self.recovery.phases if self.recovery is not None else {}

    @property
    def recovery_s(self) -> float | None:
        """The length of that recovery in seconds."""
        return sum(self.phases.values()) if self.phases else None

    @property
    def why(self) -> ChangeReason | None:
        """The reason of the generation."""
        told = self.made or self.recovery
        return told.why if told is not None else None

    @property
    def reports(self) -> bool:
        """Whether its script is known to report steps."""
        return bool(self.points) or PhaseEnd.STEPPED in self.phases

    @property
    def first_step_at(self) -> float | None:
        """When it made its first step, or the last known phase of a script that reports none; None: it did not."""
        recovery = self.recovery
        if recovery is not None and recovery.complete is not False:
            return recovery.at if recovery.began is None else recovery.began + (self.recovery_s or 0.0)
        return self.points[0].at if self.points else None

    def last_step(self, after: GenerationRecord | None) -> int | None:
        """Return its newest known step; the recovery of the generation `after` it may also know one."""
        told = after.recovery.last_step if after is not None and after.recovery is not None else None
        known = [*(point.step for point in self.points[-1:]), *([told] if told is not None else [])]
        return max(known, default=None)

    def steps_until(self, last: int | None) -> int | None:
        """Return the number of steps from its beginning to this one; None if either is not known."""
        begins = self.recovery.restored_step if self.recovery is not None else None
        if begins is None and self.points:
            begins = self.points[0].step - 1
        return None if begins is None or last is None else max(last - max(begins, 0), 0)


def pauses(notes: Sequence[GenerationRecord], until: float, *, ended: bool, has_members: bool) -> list[Downtime]:
    """Return the downtime before each generation, and the one that still lasts at `until`, if any.

    `ended`: at `until` the job ended. `has_members`: a member is registered; without members no step completes.
    """
    reports = any(record.reports for record in notes)
    downtimes: list[Downtime] = []
    for before, record, after in zip([None, *notes[:-1]], notes, [*notes[1:], None], strict=True):
        if before is None or not record.tasks:
            goes_on = after is None and not ended
            over = record.first_step_at
            if over is None and not (reports or goes_on or record.recovery is not None) and record.go is not None:
                over = record.go.at
            next_at = after.first_at if after is not None else until
            finish = over if over is not None else next_at
            again = (record.steps_until(before.last_step(record)) if before is not None else None) or 0
            whole_s, left_s = _again_s(again, record, before), max(next_at - finish, 0.0)
            downtimes.append(
                Downtime(
                    g=record.g,
                    why=record.why,
                    began=min(_began(record, before), finish),
                    ended=finish,
                    again=again,
                    made=int(again * left_s / whole_s) if left_s < whole_s else again,
                    again_s=round(min(whole_s, left_s), 3),
                    open=over is None and goes_on,
                )
            )
    if (
        notes
        and not ended
        and not downtimes[-1].open
        and (since := _still_since(notes[-1], until, has_members=has_members)) is not None
    ):
        downtimes.append(Downtime(g=notes[-1].g + 1, why=None, began=min(since, until), ended=until, open=True))
    return downtimes


def _began(record: GenerationRecord, before: GenerationRecord | None) -> float:
    recovery = record.recovery
    if recovery is None:
        return before.points[-1].at if before is not None and before.points else record.first_at
    began = recovery.began if recovery.began is not None else recovery.at - (record.recovery_s or 0.0)
    return min(began, recovery.last_at) if recovery.last_at is not None else began


def _still_since(newest: GenerationRecord, now: float, *, has_members: bool) -> float | None:
    """Return the time since which a running job completes no steps; None if it does, or if it never reported any."""
    if not newest.points:
        return None
    last = newest.points[-1]
    rates = _rates(newest)
    limit_s = max(STALE_S, STALE_STEPS / median(rates)) if rates else STALE_S
    return None if has_members and now - last.at <= limit_s else last.at


def _again_s(again: int, record: GenerationRecord, before: GenerationRecord | None) -> float:
    rates = _rates(record) + (_rates(before) if before is not None else [])
    return again / median(rates) if again and rates else 0.0


def _rates(record: GenerationRecord) -> list[float]:
    return [point.rate for point in record.points if point.rate is not None and point.rate > 0]
