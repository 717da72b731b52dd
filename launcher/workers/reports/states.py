"""What each process of a node does, and since when, from what happens to it and what it says (pure).

    starting ─► running ─► preparing · joining ─► in group ─► restored ─► stepping ─► stopping ─► exited

A script that does not use our library says nothing: it is running until it is stopped or ends. Seconds are those of the
clock of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from elastic.channel.messages import (
    FirstCommit,
    GroupFormed,
    JoiningGroup,
    PreparationOver,
    Preparing,
    Progress,
    RestoreDone,
    Serving,
    WorkerHello,
    WorkerMessage,
    truncate_text,
)
from elastic.core.ps.model import Role
from launcher.wire.inspect_messages import METRICS_MAX, WORDS_MAX, WorkerSnapshot, WorkerState
from launcher.workers.reports.step_rate import StepRate

RATE_WINDOW_S = 10.0


@dataclass
class TrackedProcess:
    """One process of the newest start. `warm`: it was forked by a nursery that had loaded python's modules."""

    role: Role
    index: int
    local_rank: int
    log: str
    g: int
    since: float
    pid: int = 0
    warm: bool = False
    state: WorkerState = WorkerState.STARTING
    detail: str = ""
    code: int | None = None
    steps: StepRate = field(default_factory=lambda: StepRate(RATE_WINDOW_S))

    def becomes(self, state: WorkerState, now: float, detail: str = "") -> None:
        """It does this now; other words for the same do not begin it anew."""
        if state is not self.state:
            self.state, self.since = state, now
        self.detail = truncate_text(detail, WORDS_MAX)

    def at(self, now: float) -> WorkerSnapshot:
        """As it is told."""
        made_at = self.steps.made_at
        return WorkerSnapshot(
            role=self.role,
            index=self.index,
            local_rank=self.local_rank,
            pid=self.pid,
            g=self.g,
            state=self.state,
            detail=self.detail,
            since_s=max(now - self.since, 0.0),
            step=self.steps.step,
            step_age_s=None if made_at is None else max(now - made_at, 0.0),
            rate=self.steps.rate_at(now),
            rate_g=self.steps.whole_rate,
            metrics=dict(islice(self.steps.metrics.items(), METRICS_MAX)),
            code=self.code,
            log=self.log,
        )


class WorkerStates:
    """The processes of one node, by local rank. They are kept when they have ended, until others start."""

    def __init__(self) -> None:
        """There were none yet."""
        self.seen: dict[int, TrackedProcess] = {}

    def begin(self, starting: Iterable[TrackedProcess]) -> None:
        """Others start."""
        self.seen = {one.local_rank: one for one in starting}

    @property
    def running(self) -> list[int]:
        """The local ranks of those that have not ended."""
        return [local for local, one in self.seen.items() if one.state is not WorkerState.EXITED]

    def named(self, role: Role, index: int) -> TrackedProcess | None:
        """The process with that rank, or in that seat; None if it is not here."""
        return next((one for one in self.seen.values() if (one.role, one.index) == (role, index)), None)

    def spawned(self, g: int, pids: Iterable[int], cold: Iterable[str], now: float) -> None:
        """They were forked, in the order of their local ranks as they were begun."""
        for one, pid, why in zip(self.seen.values(), pids, cold, strict=False):
            if one.g == g and pid and one.state is WorkerState.STARTING:
                one.pid, one.warm = pid, not why
                one.becomes(WorkerState.RUNNING, now)

    def stopping(self, why: str, now: float) -> None:
        """All that run are to end; `why` reads on after "stopped"."""
        for one in self.seen.values():
            if one.state not in (WorkerState.STOPPING, WorkerState.EXITED):
                one.becomes(WorkerState.STOPPING, now, why)

    def exited(self, g: int, local_rank: int, code: int, words: str, now: float) -> None:
        """One has ended."""
        one = self.seen.get(local_rank)
        if one is not None and one.g == g:
            one.becomes(WorkerState.EXITED, now, words)
            one.code = code

    def heard(self, local_rank: int, message: WorkerMessage, now: float) -> None:
        """One has said something."""
        process = self.seen.get(local_rank)
        if process is None or process.state is WorkerState.EXITED:
            return
        if isinstance(message, Progress):
            process.steps.reported(message.step, message.metrics, now, message.total)
        if process.state is WorkerState.STOPPING:
            return
        match message:
            case WorkerHello():  # Another program of a worker's shell script has made no step yet.
                process.steps = StepRate(RATE_WINDOW_S)
                process.becomes(WorkerState.RUNNING, now)
            case PreparationOver() if process.steps.step is not None:
                process.becomes(WorkerState.STEPPING, now)
            case PreparationOver() | JoiningGroup(missing=""):
                process.becomes(WorkerState.RUNNING, now)
            case Preparing(what):
                process.becomes(WorkerState.PREPARING, now, what)
            case JoiningGroup(missing):
                process.becomes(WorkerState.JOINING, now, missing)
            case GroupFormed():
                process.becomes(WorkerState.IN_GROUP, now)
            case RestoreDone(step):
                process.becomes(WorkerState.RESTORED, now, f"step {step}" if step >= 0 else "training begins")
            case Serving():
                process.becomes(WorkerState.SERVING if process.role is Role.SERVER else WorkerState.STEPPING, now)
            case Progress() | FirstCommit():
                process.becomes(WorkerState.STEPPING, now)
