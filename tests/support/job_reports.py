"""Events and training curves of jobs, for reports on them."""

from __future__ import annotations

from elastic.core.model import ChangeReason, FinalStatus
from launcher.history.events import EventKind, FailureRecord, HistoryEvent
from launcher.history.training_curve import CurvePoint, TrainingCurve


def made(
    g: int, at: float, why: ChangeReason = ChangeReason.NODE_LOST, nodes: tuple[str, ...] = ("a", "b"), *, run: int = 1
) -> HistoryEvent:
    return HistoryEvent(
        at=at, node="a", what=EventKind.GENERATION, g=g, run=run, why=why, nodes=nodes, world=len(nodes)
    )


def go(g: int, at: float, charged: int = 0, failure: FailureRecord | None = None) -> HistoryEvent:
    return HistoryEvent(at=at, node="a", what=EventKind.GO, g=g, charged=charged, failure=failure)


def back(
    g: int, began: float, took: float, *, last: int | None = None, restored: int | None = None, at: float | None = None
) -> HistoryEvent:
    what = EventKind.START if g == 1 else EventKind.RECOVERY
    return HistoryEvent(
        at=began + took,
        node="a",
        what=what,
        g=g,
        why=ChangeReason.FIRST if g == 1 else ChangeReason.NODE_LOST,
        phases={"spawn": took / 2, "step": took / 2},
        began=began,
        complete=True,
        last_step=last,
        restored_step=restored,
        last_at=at,
    )


def ended(g: int, at: float, status: FinalStatus = FinalStatus.COMPLETED) -> HistoryEvent:
    return HistoryEvent(at=at, node="a", what=EventKind.VERDICT, g=g, run=1, status=status, reason="so it is")


def course(*points: tuple[int, float, int]) -> TrainingCurve:
    """Points of step, time and generation, with ten steps in a second."""
    return TrainingCurve(points=tuple(CurvePoint(step, at, g, rate=10.0) for step, at, g in points))


FIRST = (made(1, 4.0, ChangeReason.FIRST), go(1, 4.5), back(1, 0.0, 10.0))
LOST = (made(2, 50.5, nodes=("a",)), go(2, 51.0), back(2, 50.0, 2.0, last=400, restored=380, at=49.5))
