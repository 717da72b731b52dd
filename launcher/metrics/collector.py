"""The data behind the metrics of one agent: recorded while things happen, summed up for each query (pure).

Only counters are recorded at once, and that costs little; everything else is read from the agent's state at the moment
of the query. Moments are seconds of the agent's clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import nan
from typing import Final

from elastic.core.agent.actions import Action, NoteSilence, SilenceStep, StopWorkers
from elastic.core.agent.events import (
    Event,
    LeaseGranted,
    LeaseRefreshed,
    SessionLost,
    TransactionAnswered,
    ViewChanged,
    WorkerExited,
    WorkersGone,
)
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import Budget, ChangeReason, Generation, JobSpec, OutcomeKind
from elastic.core.ps.model import ClusterSpec
from elastic.core.run_deadline import RunDeadline
from elastic.errors import StoreError
from launcher.history.goodput import GoodputMeter, GoodputSums
from launcher.history.recovery import PhaseEnd, Recovery
from launcher.workers.reports.step_rate import StepRate

LOSS: Final = "loss"
"""The loss, among the numbers that a script reports."""
RATE_WINDOW_S: Final = 30.0
"""The rate of steps is that of the last reports, not older than this, but of at least two."""

RECOVERY_BUCKETS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
PHASE_BUCKETS: Final = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0)
"""Fewer: each of the phases has them."""


@dataclass(slots=True)
class DurationHistogram:
    """The lengths of recoveries, or of one phase of them, in seconds; `buckets` are upper bounds."""

    buckets: tuple[float, ...]
    counts: Counter[int] = field(default_factory=Counter)
    sum_s: float = 0.0

    def add(self, length: float) -> None:
        """Add a length."""
        self.counts[bisect_left(self.buckets, length)] += 1
        self.sum_s += length

    @property
    def cumulative(self) -> list[int]:
        """Return how many were at most as long as each bound, and the total number."""
        return list(accumulate(self.counts[at] for at in range(len(self.buckets) + 1)))


class MetricsCollector:
    """The counters of one agent, over its life."""

    def __init__(self, began: float) -> None:
        """`began`: when this agent was started."""
        self.meter = GoodputMeter(began)
        self.rate = StepRate(RATE_WINDOW_S)
        self.loss: float | None = None
        self._known: Generation | None = None
        self.restarts = Counter[ChangeReason]({why: 0 for why in ChangeReason if why is not ChangeReason.FIRST})
        self.recoveries = DurationHistogram(RECOVERY_BUCKETS)
        self.phases = {mark: DurationHistogram(PHASE_BUCKETS) for mark in PhaseEnd}
        self.start_s: float | None = None
        self._ended: tuple[int, float] | None = None
        """When the workers of the newest generation that has ended here did, or something was wrong."""
        self.answered_at: float | None = None
        self.lease_losses = 0
        self.refresh_failures = 0
        self.silences = Counter[SilenceStep](dict.fromkeys(SilenceStep, 0))

    # --- events ---------------------------------------------------------------------------------------------------

    def observe(self, facts: AgentState, event: Event, actions: Sequence[Action], arrived: float) -> None:
        """Note an event that arrived at `arrived`, and the actions of the core."""
        match event:
            case WorkerExited() if event.exit.code and event.own and event.g == facts.workers.g:
                self._stopped(event.g, arrived)
            case WorkersGone() if event.g == facts.workers.g:
                wanted = facts.workers.outcome_wanted
                self._stopped(event.g, arrived, well=wanted is not None and wanted[1].ended is OutcomeKind.OK)
            case LeaseRefreshed() | LeaseGranted() | ViewChanged():
                self.answered_at = arrived
            case TransactionAnswered() if event.succeeded is not None:
                self.answered_at = arrived
            case SessionLost():
                self.lease_losses += 1
        for action in actions:
            match action:
                # Workers that are asked to exit gracefully complete some more steps.
                case StopWorkers() if not (action.planned and self.meter.counts_steps):
                    self._stopped(action.g, arrived)
                case NoteSilence():
                    self.silences[action.step] += 1
        self._count_restart(facts)
        self.meter.aside(arrived, spare=is_spare(facts))

    def stepped(self, worker: int, step: int, numbers: Mapping[str, float | None], at: float) -> None:
        """Note a step that a worker of this node reported."""
        if self.meter.stepped(worker, step, at):
            self.rate.reported(step, {}, at)
            if LOSS in numbers:
                loss = numbers[LOSS]
                self.loss = nan if loss is None else loss

    def recovered(self, recovery: Recovery) -> None:
        """Note that a recovery, or a first start, has finished on this node."""
        self.meter.back(recovery.began + recovery.total_s)
        if self._ended is not None and self._ended[0] == recovery.g:  # It is reported late, after the next change.
            self.meter.stopped(self._ended[1])
        if recovery.start:
            self.start_s = recovery.total_s
            return
        self.recoveries.add(recovery.total_s)
        for mark, length in recovery.phases:
            self.phases[mark].add(length)

    def refresh_failed(self, _: StoreError) -> None:
        """Note that a renewal of this node's lease has failed."""
        self.refresh_failures += 1

    def _stopped(self, g: int, at: float, *, well: bool = False) -> None:
        if self._ended is None or g > self._ended[0]:
            self._ended = (g, at)
        self.meter.stopped(at, well=well)
        self.rate = StepRate(RATE_WINDOW_S)

    def _count_restart(self, facts: AgentState) -> None:
        """Count a generation, or a revision of it, that was made after this agent knew one, or after its first."""
        generation, known = facts.generation, self._known
        if generation is None or generation is known:
            return
        self._known = generation
        if known is not None and _key(generation) > _key(known) and generation.why is not ChangeReason.FIRST:
            self.restarts[generation.why] += 1


@dataclass(frozen=True)
class Readings:
    """What the rows of the table of metrics read at one moment. `facts` is None before this agent reached etcd.

    `workers` are counted by `catalog.WORKER_LABELS`.
    """

    counted: MetricsCollector
    facts: AgentState | None
    workers: Mapping[str, int]
    events_dropped: int
    log_dropped_bytes: int
    now: float

    @cached_property
    def goodput(self) -> GoodputSums:
        """The times until now."""
        return self.counted.meter.sums(self.now)

    def since(self, at: float | None) -> float | None:
        """Return the seconds from a moment until now; None if it is not known."""
        return None if at is None else max(self.now - at, 0.0)

    def until(self, at: float) -> float:
        """Return the seconds from now until a moment; 0 if it has passed."""
        return max(at - self.now, 0.0)

    @property
    def generation(self) -> Generation | None:
        """The newest generation that this agent knows."""
        return self.facts.generation if self.facts is not None else None

    @property
    def spec(self) -> JobSpec | None:
        """The spec of the job."""
        return self.facts.view.spec.value if self.facts is not None and self.facts.view.spec is not None else None

    @property
    def budget(self) -> Budget | None:
        """The restarts that count; None without a spec."""
        return self.facts.view.budget if self.facts is not None and self.spec is not None else None

    @property
    def lease(self) -> RunDeadline | None:
        """The deadline that follows from the lease; None without one."""
        held = self.facts.workers.run_deadline if self.facts is not None else None
        return held if held is not None and held.lease_held else None

    @property
    def limit(self) -> RunDeadline | None:
        """How long the workers may run; None without workers."""
        facts = self.facts
        runs = facts is not None and facts.phase in (Phase.RUNNING, Phase.STOPPING) and not facts.workers.gone
        return facts.workers.run_deadline if facts is not None and runs else None


def is_spare(facts: AgentState) -> bool:
    """Return whether this node is a spare while a generation without it runs."""
    generation = facts.generation
    return (
        facts.phase is Phase.SPARE and generation is not None and facts.registration.registered and facts.member is None
    )


def _key(generation: Generation) -> tuple[int, int, int]:
    return generation.run, generation.g, generation.rev if isinstance(generation, ClusterSpec) else 0
