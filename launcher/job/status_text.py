"""Formats the status of a job from the store, together with the answers of its nodes (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from elastic._text import counted, shortened, time_text
from elastic.core.model import (
    SavedCheckpoint,
)
from elastic.core.text import process_name
from launcher.job.silence_notes import silence_notes, with_silence
from launcher.job.status import JobStatus, NodeState, NodeStatus
from launcher.text.failure_report import ago, ended_lines
from launcher.text.sanitize import sanitize_line
from launcher.wire.inspect_messages import NodeSnapshot, WorkerSnapshot, WorkerState

COLUMNS: Final = ("M_id", "node", "host", "ranks", "state", "since", "step", "rate", "note")
NUMBERS: Final = frozenset({"since", "step", "rate"})
"""Columns with numbers that change continuously."""
NAMED_MAX: Final = 5
UNKNOWN: Final = "-"

_TOLD: Final = (WorkerState.PREPARING, WorkerState.JOINING, WorkerState.STARTING)
"""States of a worker that the note of a running node shows."""


def cells(node: NodeStatus, snapshot: NodeSnapshot | None, silence: str = "") -> tuple[str, ...]:
    """Return a node's row under `COLUMNS`. `silence` is its note of `silence_notes`."""
    m_id = "-" if node.m_id is None else str(node.m_id)
    first = (m_id, node.node, node.host, node.tasks or _span(node.ranks), node.state)
    if snapshot is None:
        return tuple(map(sanitize_line, (*first, UNKNOWN, UNKNOWN, UNKNOWN, with_silence(node.note, silence))))
    note = with_silence(node.note or _note(node, snapshot), silence)
    return tuple(map(sanitize_line, (*first, time_text(snapshot.since_s), *_progress(snapshot), note)))


def rows(described: JobStatus, snapshots: Mapping[str, NodeSnapshot]) -> list[tuple[str, ...]]:
    """Return all rows below the header of the table."""
    silence = silence_notes(described, snapshots)
    return [cells(node, snapshots.get(node.node), silence.get(node.node, "")) for node in described.nodes]


def foot_lines(
    described: JobStatus, unreachable: Mapping[str, str], snapshots: Mapping[str, NodeSnapshot] | None = None
) -> list[str]:
    """Return the lines below the table: spare nodes, missing ones with reasons, unreachable ones, and imports."""
    lines = []
    if spares := [node.node for node in described.nodes if node.state is NodeState.SPARE]:
        lines.append(f"Spare: {shortened(spares, NAMED_MAX)}")
    if described.lacking:
        why = "; ".join(described.missing[:NAMED_MAX]) or "not started yet, or cannot connect to etcd"
        lines.append(f"Missing: {counted(described.lacking, 'node')}: {why}")
    elif described.missing:
        lines.append(f"Missing: {'; '.join(described.missing[:NAMED_MAX])}")
    if unreachable:
        first = next(iter(unreachable.values()))
        others = f" (and {len(unreachable) - 1} more)" if len(unreachable) > 1 else ""
        lines.append(f"No details: {first}{others}")
    loaded: dict[str, list[str]] = {}
    for node, snapshot in (snapshots or {}).items():
        if snapshot.imports:
            loaded.setdefault(snapshot.imports, []).append(node)
    for words, nodes in list(loaded.items())[:NAMED_MAX]:
        where = "" if len(nodes) == len(snapshots or ()) else f" on {shortened(nodes, NAMED_MAX)}"
        lines.append(f"Preloaded{where}: {words}")
    return [sanitize_line(line) for line in lines]


def speed(rate: float | None) -> str:
    """Format steps per second; below 1/s as seconds per step."""
    if rate is None:
        return UNKNOWN
    return f"{rate:.1f}/s" if rate >= 1 or rate == 0 else f"{1 / rate:.1f} s"


def worker_words(worker: WorkerSnapshot) -> str:
    """Format what one worker does: "rank 3 preparing: downloading (40 s)"."""
    detail = f": {worker.detail}" if worker.detail else ""
    return f"{process_name(worker.role, worker.index)} {worker.state}{detail} ({time_text(worker.since_s)})"


def _progress(snapshot: NodeSnapshot) -> tuple[str, str]:
    """Return step and rate of the node's process that has made the most steps."""
    known = [worker for worker in snapshot.workers if worker.step is not None]
    if not known:
        return UNKNOWN, UNKNOWN
    first = max(known, key=lambda worker: worker.step or 0)
    return str(first.step), speed(first.rate if first.state is not WorkerState.EXITED else None)


def _note(node: NodeStatus, snapshot: NodeSnapshot) -> str:
    if snapshot.state == "importing torch":
        return snapshot.state
    if node.state is NodeState.RUNNING:
        told = [worker for worker in snapshot.workers if worker.state in _TOLD]
        return worker_words(told[0]) if told else ""
    return ""


def head_lines(status: JobStatus, wall: float) -> list[str]:
    """Return the lines above the table. `wall` is the reader's wall clock, seconds since the epoch."""
    parts = [_generation_words(status)]
    if status.run is not None:
        parts.append(f"run {status.run}")
    if status.np is not None:
        parts.append(f"np {status.np}")
    if status.generation is not None:
        parts.append(f"world size {status.world_size}")
    if status.restarts_max is not None:
        parts.append(f"{status.restarts} of {status.restarts_max} restarts used")
    lines = [f"Job {status.job_id}: {', '.join(parts)}"]
    if status.verdict is not None:
        lines += ended_lines(status.verdict, status.job_id, wall)
    elif status.leader is not None:
        lines.append(f"Leader {status.leader}: {status.now}")
    else:
        lines.append(status.now)
    if status.saved is not None:
        lines.append(_saved_words(status.saved, status.run, wall))
    lines += [f"Cannot parse etcd key: {key}" for key in status.damaged]
    return [sanitize_line(line) for line in lines]


def _generation_words(status: JobStatus) -> str:
    if status.generation is None:
        return "no generation yet"
    gate = "" if status.go or status.verdict is not None else ", not started yet"
    return f"generation {status.generation} ({status.why}: {status.reason}){gate}"


def _saved_words(saved: SavedCheckpoint, run: int | None, wall: float) -> str:
    earlier = f" of run {saved.run}" if run is not None and saved.run != run else ""
    return f"Saved: step {saved.step}{earlier} in {saved.folder} on {saved.host}, {ago(wall - saved.at)}"


def _span(ranks: tuple[int, ...]) -> str:
    if not ranks:
        return "-"
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"
