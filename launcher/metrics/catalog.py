"""Every metric of an agent: one table, from which the page of metrics, its documentation and its tests are made (pure).

Names follow Prometheus: base units, `_total` for counters, `_info` for texts. Every sample has the label `job_id`: it
never changes while an agent runs, and queries start with it. Everything else that tells agents apart (node, host,
versions) is in `elastic_launch_info` alone: a node has a new ID each time that its agent is started, and such a label
on every sample would restart all series.

An unknown sample is left out, and never 0; counters start at 0, because Prometheus does not notice an increase
in a series that begins at 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from elastic.core.agent.actions import SilenceStep
from elastic.core.agent.state import Phase
from launcher.metrics.collector import PHASE_BUCKETS, RECOVERY_BUCKETS, DurationHistogram, Readings
from launcher.wire.inspect_messages import WorkerState

JOB: Final = "job_id"
"""The label that every sample has."""
PREFIX: Final = "elastic_launch_"


WORKER_LABELS: Final[Mapping[WorkerState, str]] = {
    WorkerState.STARTING: "starting",
    WorkerState.RUNNING: "starting",
    WorkerState.PREPARING: "preparing",
    WorkerState.JOINING: "joining",
    WorkerState.IN_GROUP: "formed",
    WorkerState.RESTORED: "formed",
    WorkerState.STEPPING: "training",
    WorkerState.SERVING: "training",
    WorkerState.STOPPING: "stopping",
    WorkerState.EXITED: "ended",
}
"""The label `state` of `elastic_launch_workers`, from the state of a worker."""


class MetricKind(StrEnum):
    """The types of Prometheus."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


Value = float | DurationHistogram
Read = Callable[[Readings], Value | Mapping[tuple[str, ...], Value] | None]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. `labels` are those in addition to `job_id`; `buckets` are upper bounds, of a histogram.

    `read` returns its value, or one for each of the values of its labels; None if that is not known.
    """

    name: str
    kind: MetricKind
    help: str
    read: Read
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def full(self) -> str:
        """The name in a query; that of a histogram also ends in `_bucket`, `_sum` or `_count`."""
        return PREFIX + self.name

    def samples(self, readings: Readings) -> Mapping[tuple[str, ...], Value]:
        """Return its values, by those of its labels; none if nothing is known."""
        found = self.read(readings)
        return found if isinstance(found, Mapping) else {} if found is None else {(): found}


def _gauge(name: str, words: str, read: Read, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, words, read, labels)


def _counter(name: str, words: str, read: Read, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, words, read, labels)


def _info(r: Readings) -> Mapping[tuple[str, ...], float]:
    if r.facts is None:
        return {}
    member = r.facts.me.member
    versions = (member.versions.get(name, "") for name in ("launcher", "python", "torch"))
    return {(r.facts.me.node, member.host, *versions): 1}


METRICS: Final = (
    Metric(
        "info",
        MetricKind.INFO,
        "The identity of this agent: its node, host, and the versions of launcher, Python and torch; always 1",
        _info,
        ("node", "host", "launcher", "python", "torch"),
    ),
    # the world
    _gauge(
        "generation",
        "The newest generation that this agent knows; 0 before the first",
        lambda r: (r.generation.g if r.generation else 0) if r.facts else None,
    ),
    _gauge(
        "world_size",
        "Workers of the newest generation, on all nodes",
        lambda r: r.generation.world_size if r.generation else None,
    ),
    _gauge("members", "Nodes of the newest generation", lambda r: len(r.generation.members) if r.generation else None),
    _gauge("np_min", "Minimum number of nodes of the job", lambda r: r.spec.np.low if r.spec else None),
    _gauge(
        "np_max",
        "Maximum number of nodes of the job; absent if it admits every node that joins (--np N+)",
        lambda r: r.spec.np.high if r.spec and not r.spec.np.unlimited else None,
    ),
    _gauge(
        "m_id",
        "The node rank (M_id) of this node in the newest generation; absent on a spare",
        lambda r: r.generation.index(r.facts.me.node) if r.facts and r.generation else None,
    ),
    _gauge(
        "state",
        "1 for the current state of this node, 0 for the others",
        lambda r: {(phase,): phase is r.facts.phase for phase in Phase} if r.facts else None,
        "state",
    ),
    _gauge(
        "workers",
        "Workers of this node by state",
        lambda r: {(label,): count for label, count in r.workers.items()},
        "state",
    ),
    # restarts
    _counter(
        "restarts_total",
        "Generations after the first one, or new starts of tasks, since this agent started",
        lambda r: {(why,): count for why, count in r.counted.restarts.items()},
        "why",
    ),
    _gauge(
        "restarts_counted",
        "Restarts of the job that count against --max-restarts",
        lambda r: r.budget.charged if r.budget else None,
    ),
    _gauge(
        "restarts_max",
        "Restart budget of the job (--max-restarts)",
        lambda r: r.spec.restarts_max if r.spec else None,
    ),
    _gauge(
        "consecutive_failures",
        "Consecutive failures of the whole job without progress; ten end it",
        lambda r: r.budget.consecutive_failures if r.budget else None,
    ),
    # recoveries
    Metric(
        "recovery_seconds",
        MetricKind.HISTOGRAM,
        "Length of recoveries as this node observed them, to its first step",
        lambda r: r.counted.recoveries,
        buckets=RECOVERY_BUCKETS,
    ),
    Metric(
        "recovery_phase_seconds",
        MetricKind.HISTOGRAM,
        "Length of each phase of the recoveries on this node",
        lambda r: {(phase,): lengths for phase, lengths in r.counted.phases.items()},
        ("phase",),
        PHASE_BUCKETS,
    ),
    _gauge(
        "start_seconds",
        "Time from starting this node's command to its first step, in the first start of the job",
        lambda r: r.counted.start_s,
    ),
    # training
    _gauge("step", "The newest step that this node's workers have reported", lambda r: r.counted.meter.step),
    _counter(
        "steps_total",
        "Steps that this node's workers have reported, repeated ones included",
        lambda r: r.counted.meter.steps,
    ),
    _counter(
        "steps_repeated_total", "Steps that were repeated after a recovery", lambda r: r.counted.meter.steps_again
    ),
    _gauge(
        "steps_per_second",
        "The rate of steps in the last 30 s, 0 if the next is late; absent while nothing runs",
        lambda r: r.counted.rate.rate_at(r.now),
    ),
    _gauge(
        "last_step_age_seconds",
        "Time since the last reported step; absent before the first",
        lambda r: r.since(r.counted.meter.stepped_at),
    ),
    _gauge("loss", "The loss as the script last reported it; NaN if it was not finite", lambda r: r.counted.loss),
    # goodput
    _gauge(
        "goodput_ratio",
        "Share of this agent's time, except as a spare, spent on steps that count (see the metrics guide)",
        lambda r: r.goodput.goodput,
    ),
    _counter(
        "productive_seconds_total",
        "Time this node spent on steps that count",
        lambda r: r.goodput.productive_s,
    ),
    _counter("repeated_seconds_total", "Time this node spent on repeating steps", lambda r: r.goodput.again_s),
    _counter(
        "clock_seconds_total",
        "Time since this agent started, without its time as a spare",
        lambda r: r.goodput.clock_s,
    ),
    # etcd
    _gauge(
        "lease_age_seconds",
        "Time since this node sent the newest lease renewal that etcd confirmed",
        lambda r: r.since(r.lease.refreshed_at) if r.lease else None,
    ),
    _gauge(
        "lease_ttl_seconds",
        "TTL of the lease: it expires if it is not renewed for this long",
        lambda r: r.lease.ttl_s if r.lease else None,
    ),
    _gauge(
        "lease_remaining_seconds",
        "How long this node may run workers without another answer from etcd or a node; absent without workers",
        lambda r: r.until(r.limit.until()) if r.limit else None,
    ),
    _gauge(
        "lease_remaining_max_seconds",
        "The same, if etcd stays silent and other nodes extend the lease as far as allowed",
        lambda r: r.until(r.limit.refreshed_at + r.limit.ttl_s + r.limit.outage_limit_s) if r.limit else None,
    ),
    _gauge("etcd_silence_seconds", "Time since etcd last answered", lambda r: r.since(r.counted.answered_at)),
    _counter("lease_renewal_failures_total", "Failed renewals of the lease", lambda r: r.counted.refresh_failures),
    _counter("lease_losses_total", "Leases of this node that were lost", lambda r: r.counted.lease_losses),
    _counter(
        "events_dropped_total",
        "Events that were not written to the job's history, because there were too many at once",
        lambda r: r.events_dropped,
    ),
    # silent nodes
    _counter(
        "suspicions_total",
        "Nodes that this node suspected because they sent nothing for --silence-timeout",
        lambda r: r.counted.silences[SilenceStep.SUSPECTED],
    ),
    _counter(
        "suspicions_cleared_total",
        "Suspicions that ended because the node sent something or another node could connect to it",
        lambda r: r.counted.silences[SilenceStep.CLEARED],
    ),
    _counter(
        "evictions_total",
        "Nodes that this node, as the leader, evicted after their silence was confirmed",
        lambda r: r.counted.silences[SilenceStep.EVICTED],
    ),
    # logs
    _counter(
        "log_dropped_bytes_total",
        "Bytes of logs that were dropped because the disk was stalled",
        lambda r: r.log_dropped_bytes,
    ),
)
"""Every metric, in the order of the page, except those of the process, which are prometheus_client's own."""

PROCESS: Final = (
    "process_virtual_memory_bytes",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_max_fds",
)
"""Metrics of the agent's own process; they have no label."""
