"""What fake workers say to their agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elastic.core.ps.model import Role
from launcher.workers.reports.states import TrackedProcess
from launcher.workers.spec import WorkerSpec
from tests.support.fake_workers import Worker


def tracked(rank: int, g: int = 1, *, local_rank: int | None = None, role: Role = Role.WORKER) -> TrackedProcess:
    """A worker that was started at 0, as its agent knows it; no connection of it is there."""
    local_rank = rank if local_rank is None else local_rank
    log = Path(f"/log/workerlog.{rank}")
    spec = WorkerSpec(rank, local_rank, argv=(), env={}, cwd="/", log=log, shown=False, header="", role=role)
    return TrackedProcess(spec, rank, g, 0.0)


async def reports_steps(worker: Worker, *steps: int) -> None:
    for step in steps:
        said = {"type": "progress", "step": step, "world": 1, "metrics": {"loss": 1 / step, "lr": 0.5}, "at": 0.0}
        await worker.obeys("say", said)


async def reports(worker: Worker, step: int) -> None:
    """The worker has made a step."""
    await worker.obeys("say", {"type": "progress", "step": step, "world": 2, "metrics": {"loss": 0.5}})


async def says(worker: Worker, kind: str, **fields: Any) -> None:
    await worker.obeys("say", {"type": kind, **fields})


async def listens(worker: Worker, *, committed: bool = True) -> None:
    """The worker uses our library: it commits its steps."""
    await worker.obeys("say", {"type": "listening"})
    if committed:
        await worker.obeys("say", {"type": "committed"})
