"""The sections of a job's page, as plain values; the server sends a section again only when it has changed (pure).

Ages become points in time (wall clocks, seconds since the epoch): they do not change while nothing happens, and the
page updates the ages itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from elastic.core.model import FinalStatus
from elastic.core.ps.model import Role
from launcher.history.events import HistoryEvent
from launcher.history.job_report import GenerationReport, JobReport
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.job.overview import JobOverview
from launcher.job.silence_notes import silence_notes, with_silence
from launcher.job.status import JobStatus, NodeStatus
from launcher.wire.inspect_messages import NodeSnapshot, WorkerSnapshot, WorkerState

GONE_MAX: Final = 24
"""Nodes on the page that have left, newest first."""
ENDED: Final = {FinalStatus.COMPLETED: "Completed", FinalStatus.FAILED: "Failed", FinalStatus.STOPPED: "Stopped"}

Sections = Mapping[str, Any]
"""JSON values by name."""


def sections(
    picture: JobOverview, story: JobReport, course: TrainingCurve | None, events: Sequence[HistoryEvent], now: float
) -> Sections:
    """Return everything on the page of a job at `now`, a wall clock."""
    status, names = picture.status, dict[str, int]()
    silence = silence_notes(status, picture.snapshots)
    generations = [_generation(generation, names) for generation in story.generations]
    return {
        "head": _head(picture, story, course, now),
        "nodes": [_node(node, picture, silence.get(node.node, "")) for node in status.nodes],
        "gone": _gone(status, story.generations),
        "names": list(names),
        "generations": generations,
        "pauses": msgspec.to_builtins(story.pauses),
        "course": _curve(course),
        "events": [_event(event) for event in events],
        "failure": msgspec.to_builtins(story.first_failure),
    }


def with_live_points(stored: TrainingCurve | None, seen: TrainingCurve) -> TrainingCurve | None:
    """Return the stored curve with the newer points of `seen`, and with those of generations that stored none.

    Agents store the curve only once a minute, and a node that fails stores nothing.
    """
    if stored is None or not stored.points:
        return seen if seen.points else stored
    first, last = stored.points[0], stored.points[-1]
    points = [CurvePoint(point.step, point.at, point.g, point.loss, point.rate) for point in seen.points]
    before = (point for point in points if point.g < first.g)
    after = (
        point
        for point in points
        if point.g >= last.g and point.at > last.at and (point.g > last.g or point.step > last.step)
    )
    return msgspec.structs.replace(stored, points=(*before, *stored.points, *after))


def newest_point(picture: JobOverview) -> tuple[CurvePoint, Mapping[str, float | None]] | None:
    """Return the newest step of rank 0 and its metrics, None if rank 0 runs no steps."""
    first = _rank_0(picture.snapshots.values())
    if first is None or first.step is None or first.step_age_s is None or first.state is WorkerState.EXITED:
        return None
    point = CurvePoint(first.step, round(picture.asked_at - first.step_age_s, 3), first.g, first.metrics.get("loss"))
    return point, first.metrics


def _head(picture: JobOverview, story: JobReport, course: TrainingCurve | None, now: float) -> dict[str, Any]:
    status, first = picture.status, _rank_0(picture.snapshots.values())
    points = course.points if course is not None else ()
    rates = [point.rate for point in points if point.rate is not None]
    fields: dict[str, Any] = {
        name: getattr(status, name)
        for name in ("job_id", "run", "np", "generation", "reason", "go", "lacking", "missing", "damaged")
    }
    verdict = status.verdict
    lives = first is not None and first.state is not WorkerState.EXITED
    return {
        **fields,
        "proposer": status.leader,
        "world": status.world_size,
        "members": sum(node.m_id is not None and not status.verdict for node in status.nodes),
        "why": msgspec.to_builtins(status.why),
        "restarts": status.restarts,
        "restarts_max": status.restarts_max,
        "state": str(verdict.status) if verdict is not None else _state(status, story),
        "sentence": _sentence(status),
        "verdict": {"status": str(verdict.status), "reason": verdict.reason, "at": verdict.at, "g": verdict.g}
        if verdict is not None
        else None,
        "saved": msgspec.to_builtins(status.saved),
        "began": story.began,
        "until": story.until if verdict is not None else None,
        "since": story.since,
        "goodput": story.goodput,
        "totals": msgspec.to_builtins(story.totals),
        "step": _step(status, first if lives else None, story),
        "rate": first.rate if lives and first is not None else (rates[-1] if rates and verdict is None else None),
        "at": round(now, 3),
    } | _loss(first, points)


def _step(status: JobStatus, first: WorkerSnapshot | None, story: JobReport) -> int | None:
    """The newest known step. A checkpoint of rank 0's generation can be newer than rank 0's last answer."""
    step, g = (first.step, first.g) if first is not None and first.step is not None else (story.totals.step, 0)
    saved = status.saved
    if saved is None or saved.run != status.run or saved.g < g:
        return step
    return max(step or 0, saved.step)


def _loss(first: WorkerSnapshot | None, points: Sequence[CurvePoint]) -> dict[str, float | None]:
    """The newest loss, None if it is not finite; empty if none was reported.

    A stored point without a loss had one that is not finite if earlier points of its generation have a loss.
    """
    if first is not None and "loss" in first.metrics:
        return {"loss": first.metrics["loss"]}
    known = next((point for point in reversed(points) if point.loss is not None), None)
    if known is None:
        return {}
    return {"loss": known.loss if points[-1].loss is not None or points[-1].g != known.g else None}


def _state(status: JobStatus, story: JobReport) -> str:
    """One of waiting, starting, recovering, downtime, training."""
    if status.generation is None:
        return "waiting"
    pause = story.pauses[-1] if story.pauses and story.pauses[-1].open else None
    if status.go and pause is None:
        return "training"
    if status.go and pause is not None and pause.g > status.generation:
        return "downtime"  # The newest step is old, and no other generation is forming.
    return "recovering" if len(story.generations) > 1 else "starting"


def _sentence(status: JobStatus) -> str:
    if status.verdict is not None:
        reason = f": {status.verdict.reason}" if status.verdict.reason else ""
        return f"{ENDED[status.verdict.status]}{reason}"
    return status.now[:1].upper() + status.now[1:]


def _node(node: NodeStatus, picture: JobOverview, silence: str) -> dict[str, Any]:
    snapshot, now = picture.snapshots.get(node.node), picture.asked_at
    fields: dict[str, Any] = {
        "node": node.node,
        "host": node.host,
        "m_id": node.m_id,
        "state": str(node.state),
        "note": with_silence(node.note, silence),
        "tasks": node.tasks,
        "ranks": list(node.ranks),
    }
    if snapshot is None:
        return {**fields, "unreachable": picture.unreachable.get(node.node, "")}
    return fields | {
        "g": snapshot.g,
        "phase": snapshot.state,
        "since": _moment(now, snapshot.since_s),
        "lease_age_s": _short(snapshot.lease_age_s),
        "lease_remaining_s": _short(snapshot.lease_remaining_s),
        "waits": snapshot.waits,
        "version": snapshot.version,
        "imports": snapshot.imports,
        "pid": snapshot.pid,
        "up": _moment(now, snapshot.up_s),
        "workers": [_worker(worker, now) for worker in snapshot.workers],
        "more": snapshot.more,
    }


def _worker(worker: WorkerSnapshot, now: float) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "role": str(worker.role),
        "index": worker.index,
        "local_rank": worker.local_rank,
        "pid": worker.pid,
        "g": worker.g,
        "state": str(worker.state),
        "since": _moment(now, worker.since_s),
    }
    optional = {
        "detail": worker.detail,
        "step": worker.step,
        "rate": worker.rate,
        "metrics": dict(worker.metrics),
        "code": worker.code,
        "log": worker.log,
    }
    return fields | {name: value for name, value in optional.items() if value not in (None, "", {})}


def _gone(status: JobStatus, chapters: Sequence[GenerationReport]) -> list[dict[str, Any]]:
    """The nodes of former generations that are gone, and why the next generation was formed without them."""
    present = {node.node for node in status.nodes}
    gone: dict[str, dict[str, Any]] = {}
    for before, after in pairwise(chapters):
        if not after.nodes or after.more:
            continue
        for node in before.nodes:
            if node not in after.nodes and node not in present:
                at = after.published_at or after.go_at
                why = msgspec.to_builtins(after.why)
                gone[node] = {"node": node, "g": before.g, "at": at, "why": why, "reason": after.reason}
    for node in chapters[-1].nodes if chapters else ():
        gone.pop(node, None)  # The node has returned.
    return list(reversed(gone.values()))[:GONE_MAX]


def _generation(one: GenerationReport, names: dict[str, int]) -> dict[str, Any]:
    """Nodes have long names and are in many generations: the page gets each name once, and its index here."""
    found: dict[str, Any] = msgspec.to_builtins(one)
    failure = found.pop("failure")
    found["failure"] = None if failure is None else {key: failure[key] for key in ("host", "rank", "role", "words")}
    return {**found, "nodes": [names.setdefault(node, len(names)) for node in one.nodes]}


def _curve(course: TrainingCurve | None) -> dict[str, Any]:
    if course is None:
        return {"names": [], "points": []}
    return {"names": list(course.names), "points": [msgspec.to_builtins(point) for point in course.points]}


def _event(event: HistoryEvent) -> dict[str, Any]:
    return {"at": event.at, "node": event.node, "what": str(event.what), "g": event.g, "text": event.text}


def _rank_0(snapshots: Iterable[NodeSnapshot]) -> WorkerSnapshot | None:
    """The newest rank 0 that any node reports."""
    found = (
        worker
        for snapshot in snapshots
        for worker in snapshot.workers
        if worker.index == 0 and worker.role is Role.WORKER
    )
    return max(found, key=lambda worker: worker.g, default=None)


def _moment(now: float, age_s: float) -> float:
    return round(now - age_s)


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
