"""The state of each process of a node, and since when, from its exits and its messages (pure).

    starting ─► running ─► preparing · joining ─► in group ─► restored ─► stepping ─► stopping ─► exited

A script that does not use the elastic library reports nothing: it is running until it is stopped or ends. Seconds are
those of the agent's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from elastic.channel.messages import (
    AcceptsPlannedStop,
    CheckpointSaved,
    FirstCommit,
    GroupFormed,
    JoiningGroup,
    PreparationOver,
    Preparing,
    Progress,
    RestoreDone,
    SavedAndLeaving,
    Serving,
    Unrecoverable,
    WorkerHello,
    WorkerMessage,
    truncate_text,
)
from elastic.core.ps.model import Role
from launcher.wire.inspect_messages import METRICS_MAX, WORDS_MAX, WorkerSnapshot, WorkerState
from launcher.workers.reports.step_rate import StepRate
from launcher.workers.spec import WorkerSpec

if TYPE_CHECKING:
    from elastic.channel.server import WorkerConnection
    from launcher.workers.worker_output import WorkerProcess

RATE_WINDOW_S = 10.0


@dataclass
class WorkerReport:
    """What the program of a worker has reported: its steps, and more.

    `world` is the world size at the newest step. `started`: it has formed a process group, made a step, or called the
    elastic library. `saved` is the highest step that it saved, -1 if none. `left_at` is the step that it saved before
    it exited on request. `unrecoverable` is its message that it ends, and would at each start.
    """

    steps: StepRate = field(default_factory=lambda: StepRate(RATE_WINDOW_S))
    world: int = 0
    listening: bool = False
    committed: bool = False
    started: bool = False
    saved: int = -1
    left_at: int | None = None
    unrecoverable: Unrecoverable | None = None

    def unrecoverable_with(self, code: int) -> str:
        """Return its message that each start would end with `code`; "" if it sent none."""
        word = self.unrecoverable
        return word.text if word is not None and word.code == code else ""


@dataclass
class TrackedProcess:
    """One process of the newest start.

    `rank` is the one that its messages carry. `warm`: it was forked by a fork server with Python's modules loaded.
    `output` is None if the fork server died before handing it over, `connection` while the program has none.
    `secondary`: it ended because it lost a peer. `given_up`: it was stopped because it could not continue.
    """

    spec: WorkerSpec
    rank: int
    g: int
    since: float
    pid: int = 0
    warm: bool = False
    state: WorkerState = WorkerState.STARTING
    detail: str = ""
    code: int | None = None
    secondary: bool = False
    given_up: bool = False
    output: WorkerProcess | None = None
    connection: WorkerConnection | None = None
    report: WorkerReport = field(default_factory=WorkerReport)

    @property
    def local_rank(self) -> int:
        """Its local rank, or its index among the tasks of the node."""
        return self.spec.local_rank

    def becomes(self, state: WorkerState, now: float, detail: str = "") -> None:
        """Enter a state; a new `detail` of the same state does not restart its time. Only an exit follows a stop."""
        if self.state in (WorkerState.STOPPING, WorkerState.EXITED) and state is not WorkerState.EXITED:
            return
        if state is not self.state:
            self.state, self.since = state, now
        self.detail = truncate_text(detail, WORDS_MAX)

    def heard(self, message: WorkerMessage, now: float) -> None:
        """Note a message of its program."""
        if self.state is WorkerState.EXITED:
            return
        report = self.report
        match message:
            case WorkerHello():  # Another program of a worker's shell script starts without any reports.
                self.report = WorkerReport()
                self.becomes(WorkerState.RUNNING, now)
            case PreparationOver() if report.steps.step is not None:
                self.becomes(WorkerState.STEPPING, now)
            case PreparationOver() | JoiningGroup(missing=""):
                self.becomes(WorkerState.RUNNING, now)
            case Preparing(what):
                self.becomes(WorkerState.PREPARING, now, what)
            case JoiningGroup(missing):
                self.becomes(WorkerState.JOINING, now, missing)
            case GroupFormed():
                report.started, report.unrecoverable = True, None
                self.becomes(WorkerState.IN_GROUP, now)
            case AcceptsPlannedStop():
                report.listening, report.started, report.unrecoverable = True, True, None
            case RestoreDone(step):
                self.becomes(WorkerState.RESTORED, now, f"step {step}" if step >= 0 else "training begins")
            case Serving():
                report.unrecoverable = None
                self.becomes(WorkerState.SERVING if self.spec.role is Role.SERVER else WorkerState.STEPPING, now)
            case Progress(step, world, metrics):
                report.started, report.world = True, world
                report.steps.reported(step, metrics, now, message.total)
                self.becomes(WorkerState.STEPPING, now)
            case FirstCommit():
                report.committed, report.started, report.unrecoverable = True, True, None
                self.becomes(WorkerState.STEPPING, now)
            case CheckpointSaved(step):
                report.saved = max(report.saved, step)
            case SavedAndLeaving(step):
                report.left_at = step
            case Unrecoverable():
                report.unrecoverable = message

    def exited(self, code: int, words: str, now: float) -> None:
        """Note that it has ended."""
        self.becomes(WorkerState.EXITED, now, words)
        self.code = code

    def hung_up(self, now: float) -> None:
        """Note that its connection is closed, so what it waits for or prepares is unknown from now on."""
        self.connection = None
        if self.state in (WorkerState.PREPARING, WorkerState.JOINING):
            self.becomes(WorkerState.RUNNING, now)

    def at(self, now: float) -> WorkerSnapshot:
        """Return its state at this time."""
        steps = self.report.steps
        return WorkerSnapshot(
            role=self.spec.role,
            index=self.spec.rank,
            local_rank=self.local_rank,
            pid=self.pid,
            g=self.g,
            state=self.state,
            detail=self.detail,
            since_s=max(now - self.since, 0.0),
            step=steps.step,
            step_age_s=None if steps.made_at is None else max(now - steps.made_at, 0.0),
            rate=steps.rate_at(now),
            rate_g=steps.whole_rate,
            metrics=dict(islice(steps.metrics.items(), METRICS_MAX)),
            code=self.code,
            log=self.spec.log_text,
        )


class WorkerStates:
    """The processes of one node and one generation. They are kept after their end, until others start."""

    def __init__(self) -> None:
        """Start without any process."""
        self.seen: dict[int, TrackedProcess] = {}
        """The processes of the newest start, by local rank."""
        self.g = 0
        self.first = False
        """Whether this is the first start in this run of the job."""
        self.gone = True
        """Whether all processes of the start have ended."""
        self.why_stopped = ""

    def begin(self, g: int, starting: Iterable[TrackedProcess], *, first: bool) -> None:
        """Replace the processes by those of a new start."""
        self.seen = {one.local_rank: one for one in starting}
        self.g, self.first, self.gone, self.why_stopped = g, first, False, ""

    def has(self, g: int) -> bool:
        """Return whether processes of generation `g` are present."""
        return g == self.g and not self.gone

    @property
    def running(self) -> list[int]:
        """The local ranks of those that have not ended."""
        return [local for local, one in self.seen.items() if one.state is not WorkerState.EXITED]

    def stepped_at(self) -> float:
        """Return when one of them reported its newest step; minus infinity if none has."""
        made = (one.report.steps.made_at for one in self.seen.values())
        return max((at for at in made if at is not None), default=float("-inf"))

    def named(self, role: Role, index: int) -> TrackedProcess | None:
        """Return the process of a role with that rank or index; None if it is not on this node."""
        return next((one for one in self.seen.values() if (one.spec.role, one.spec.rank) == (role, index)), None)

    def spawned(self, g: int, pids: Iterable[int], cold: Iterable[str], now: float) -> None:
        """Note that they were forked, in the order of their local ranks."""
        for one, pid, why in zip(self.seen.values(), pids, cold, strict=False):
            if one.g == g and pid and one.state is WorkerState.STARTING:
                one.pid, one.warm = pid, not why
                one.becomes(WorkerState.RUNNING, now)

    def stopping(self, why: str, now: float) -> None:
        """Note that all running processes are being stopped; `why` completes "stopped …"."""
        self.why_stopped = self.why_stopped or why
        for one in self.seen.values():
            one.becomes(WorkerState.STOPPING, now, why)
