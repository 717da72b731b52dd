"""What the metrics of one agent are made of: noted while things happen, summed up when somebody asks (pure).

Only what is counted is noted at once, and that costs little; everything else is read from what the agent knows in the
moment of the question. Moments are seconds of the agent's clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import nan
from typing import Final, NamedTuple

from elastic.core.agent.actions import Action, StopWorkers
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
from elastic.core.model import ChangeReason, Generation, OutcomeKind
from elastic.core.ps.model import ClusterSpec
from launcher.history.goodput import GoodputMeter
from launcher.history.recovery import PhaseEnd, Recovery
from launcher.metrics.catalog import BY_NAME
from launcher.workers.reports.progress_text import RATE_WINDOW_S
from launcher.workers.reports.step_rate import StepRate

LOSS: Final = "loss"
"""The loss, among the numbers that a script reports."""


class MetricSample(NamedTuple):
    """One number of the metric `name` (without the prefix). `labels` are the values of the metric's own."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


class Distribution(NamedTuple):
    """One histogram: how many were at most as long as each bound of its buckets, and in all; and their sum."""

    name: str
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    sum_s: float


class ExternalReadings(NamedTuple):
    """What others know in the moment of the question. `workers` are counted by `catalog.WORKER_LABELS`."""

    workers: Mapping[str, int]
    events_dropped: int
    log_dropped_bytes: int


@dataclass(slots=True)
class _DurationHistogram:
    """The lengths of recoveries, or of one phase of them: the histogram `name`."""

    name: str
    labels: tuple[str, ...] = ()
    counts: Counter[int] = field(default_factory=Counter)
    sum_s: float = 0.0

    def add(self, length: float) -> None:
        """One more."""
        self.counts[bisect_left(BY_NAME[self.name].buckets, length)] += 1
        self.sum_s += length

    @property
    def distribution(self) -> Distribution:
        """What there is by now."""
        places = range(len(BY_NAME[self.name].buckets) + 1)
        return Distribution(self.name, self.labels, tuple(accumulate(self.counts[at] for at in places)), self.sum_s)


class MetricsCollector:
    """One agent's, over its life."""

    def __init__(self, began: float) -> None:
        """`began`: when this agent was started."""
        self.meter = GoodputMeter(began)
        self._rate = StepRate(RATE_WINDOW_S)
        self._loss: float | None = None
        self._known: Generation | None = None
        self._restarts = Counter[ChangeReason]({why: 0 for why in ChangeReason if why is not ChangeReason.FIRST})
        self._recoveries = _DurationHistogram("recovery_seconds")
        self._phases = {mark: _DurationHistogram("recovery_phase_seconds", (mark,)) for mark in PhaseEnd}
        self._start_s: float | None = None
        self._ended: tuple[int, float] | None = None
        """When the workers of the newest generation that has ended here did, or something was wrong."""
        self._answered_at: float | None = None
        self._lease_losses = 0
        self.refresh_failures = 0

    # --- what happens ---------------------------------------------------------------------------------------------

    def observe(self, facts: AgentState, event: Event, actions: Sequence[Action], *, arrived: float) -> None:
        """Note an event that came at `arrived`, and what the core asked for."""
        match event:
            case WorkerExited() if event.exit.code and event.own and event.g == facts.workers.g:
                self._stopped(event.g, arrived)
            case WorkersGone() if event.g == facts.workers.g:
                wanted = facts.workers.outcome_wanted
                self._stopped(event.g, arrived, well=wanted is not None and wanted[1].ended is OutcomeKind.OK)
            case LeaseRefreshed() | LeaseGranted() | ViewChanged():
                self._answered_at = arrived
            case TransactionAnswered() if event.succeeded is not None:
                self._answered_at = arrived
            case SessionLost():
                self._lease_losses += 1
        for action in actions:
            # Workers that are asked to leave in order make some steps more.
            if isinstance(action, StopWorkers) and not (action.planned and self.meter.counts_steps):
                self._stopped(action.g, arrived)
        self._count_restart(facts)
        self.meter.aside(arrived, spare=is_spare(facts))

    def stepped(self, worker: int, step: int, numbers: Mapping[str, float | None], at: float) -> None:
        """A worker of this node reported a step."""
        if self.meter.stepped(worker, step, at):
            self._rate.reported(step, {}, at)
            if LOSS in numbers:
                loss = numbers[LOSS]
                self._loss = nan if loss is None else loss

    def recovered(self, recovery: Recovery) -> None:
        """A recovery, or a first start, is over on this node."""
        self.meter.back(recovery.began + recovery.total_s)
        if self._ended is not None and self._ended[0] == recovery.g:  # It is told late: the next change has come.
            self.meter.stopped(self._ended[1])
        if recovery.start:
            self._start_s = recovery.total_s
            return
        self._recoveries.add(recovery.total_s)
        for mark, length in recovery.phases:
            self._phases[mark].add(length)

    def _stopped(self, g: int, at: float, *, well: bool = False) -> None:
        if self._ended is None or g > self._ended[0]:
            self._ended = (g, at)
        self.meter.stopped(at, well=well)
        self._rate = StepRate(RATE_WINDOW_S)

    def _count_restart(self, facts: AgentState) -> None:
        """Count a generation, or a revision of it, that was made after this agent knew one, or after its first."""
        generation, known = facts.generation, self._known
        if generation is None or generation is known:
            return
        self._known = generation
        if known is not None and _key(generation) > _key(known) and generation.why is not ChangeReason.FIRST:
            self._restarts[generation.why] += 1

    # --- what is asked --------------------------------------------------------------------------------------------

    def samples(self, facts: AgentState | None, asides: ExternalReadings, now: float) -> Iterator[MetricSample]:
        """Every number that is known, but for the histograms. `facts` is None before this agent has reached etcd."""
        for why, count in self._restarts.items():
            yield MetricSample("restarts_total", count, (why,))
        yield from self._of_training(now)
        for state, count in asides.workers.items():
            yield MetricSample("workers", count, (state,))
        yield MetricSample("refresh_failures_total", self.refresh_failures)
        yield MetricSample("lease_losses_total", self._lease_losses)
        yield MetricSample("events_dropped_total", asides.events_dropped)
        yield MetricSample("log_dropped_bytes_total", asides.log_dropped_bytes)
        if self._answered_at is not None:
            yield MetricSample("store_silence_seconds", max(now - self._answered_at, 0.0))
        if facts is not None:
            yield from _of_job(facts)
            yield from _run_deadline_samples(facts, now)

    def distributions(self) -> Iterator[Distribution]:
        """Every histogram."""
        for lengths in (self._recoveries, *self._phases.values()):
            yield lengths.distribution

    def _of_training(self, now: float) -> Iterator[MetricSample]:
        meter = self.meter
        sums = meter.sums(now)
        yield MetricSample("steps_total", meter.steps)
        yield MetricSample("steps_again_total", meter.steps_again)
        yield MetricSample("clock_seconds_total", sums.clock_s)
        yield MetricSample("productive_seconds_total", sums.productive_s)
        yield MetricSample("again_seconds_total", sums.again_s)
        known: dict[str, float | None] = {
            "start_seconds": self._start_s,
            "step": meter.step,
            "steps_per_second": self._rate.rate_at(now),
            "last_step_age_seconds": max(now - meter.stepped_at, 0.0) if meter.stepped_at is not None else None,
            "loss": self._loss,
            "goodput_ratio": sums.goodput,
        }
        yield from (MetricSample(name, value) for name, value in known.items() if value is not None)


def is_spare(facts: AgentState) -> bool:
    """Whether this node stands by while a world without it runs."""
    generation = facts.generation
    return (
        facts.phase is Phase.SPARE and generation is not None and facts.registration.registered and not _inside(facts)
    )


def _inside(facts: AgentState) -> bool:
    return facts.member is not None


def _key(generation: Generation) -> tuple[int, int, int]:
    return generation.run, generation.g, generation.rev if isinstance(generation, ClusterSpec) else 0


def _of_job(facts: AgentState) -> Iterator[MetricSample]:
    """The world, and what it has cost."""
    member = facts.me.member
    texts = (facts.me.node, member.host, *(member.versions.get(name, "") for name in ("launcher", "python", "torch")))
    yield MetricSample("info", 1, texts)
    for phase in Phase:
        yield MetricSample("state", phase is facts.phase, (phase,))
    generation, stored = facts.generation, facts.view.spec
    yield MetricSample("generation", generation.g if generation is not None else 0)
    if generation is not None:
        yield MetricSample("world_size", generation.world_size)
        yield MetricSample("members", len(generation.members))
        m_id = generation.index(facts.me.node)
        if m_id is not None:
            yield MetricSample("m_id", m_id)
    if stored is not None:
        budget = facts.view.budget
        yield MetricSample("np_min", stored.value.np.low)
        if not stored.value.np.unlimited:
            yield MetricSample("np_max", stored.value.np.high)
        yield MetricSample("restarts_charged", budget.charged)
        yield MetricSample("restarts_max", stored.value.restarts_max)
        yield MetricSample("fruitless_failures", budget.fruitless)


def _run_deadline_samples(facts: AgentState, now: float) -> Iterator[MetricSample]:
    """The lease, and the right to run that follows from it."""
    right = facts.workers.run_deadline
    if right.lease_held:
        yield MetricSample("lease_age_seconds", max(now - right.refreshed_at, 0.0))
        yield MetricSample("lease_ttl_seconds", right.ttl_s)
    if facts.phase in (Phase.RUNNING, Phase.STOPPING) and not facts.workers.gone:
        limit = right.refreshed_at + right.ttl_s + right.outage_limit_s
        yield MetricSample("right_seconds", max(right.until() - now, 0.0))
        yield MetricSample("right_at_most_seconds", max(limit - now, 0.0))
