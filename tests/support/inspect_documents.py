"""Snapshots of nodes and of their workers, as agents show them."""

from __future__ import annotations

from elastic.core.ps.model import Role
from launcher.wire import inspect_messages
from launcher.wire.inspect_messages import NodeSnapshot, WorkerSnapshot, WorkerState

METRICS = {f"a metric with a long name {number:038d}": 1 / 3 for number in range(16)}


def snapshot_worker(index: int) -> WorkerSnapshot:
    return WorkerSnapshot(
        role=Role.WORKER,
        index=index,
        local_rank=index,
        pid=4_000_000,
        g=7,
        state=WorkerState.PREPARING,
        detail="d" * inspect_messages.WORDS_MAX,
        metrics=METRICS,
        log=f"/home/me/log/workerlog.{index}",
    )


def snapshot(workers: int) -> NodeSnapshot:
    return NodeSnapshot(
        job_id="j1",
        node="h-0001",
        host="h",
        version="0.1.0",
        pid=1,
        up_s=1.5,
        g=7,
        m_id=0,
        state="running",
        since_s=1.0,
        lease_age_s=0.1,
        lease_remaining_s=4.0,
        waits="",
        workers=tuple(map(snapshot_worker, range(workers))),
    )


def worker(index: int, state: WorkerState, *, step: int | None = None, rate: float | None = None) -> WorkerSnapshot:
    detail = "downloading" if state is WorkerState.PREPARING else ""
    return WorkerSnapshot(
        role=Role.WORKER,
        index=index,
        local_rank=0,
        pid=1,
        g=1,
        state=state,
        detail=detail,
        since_s=40.0,
        step=step,
        rate=rate,
    )


def window(*workers: WorkerSnapshot, state: str = "running") -> NodeSnapshot:
    return NodeSnapshot(
        job_id="j",
        node="a-1",
        host="a",
        version="0",
        pid=1,
        up_s=1.0,
        g=1,
        m_id=0,
        state=state,
        since_s=250.0,
        lease_age_s=0.1,
        lease_remaining_s=4.0,
        waits="",
        workers=workers,
    )
