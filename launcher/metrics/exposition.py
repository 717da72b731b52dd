"""The page of metrics: `launcher.metrics.catalog` in the formats of Prometheus, as text or as OpenMetrics.

`prometheus_client` is imported here, and so only by an agent with `--metrics-port`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from launcher.metrics import catalog
from launcher.metrics.catalog import JOB, METRICS, MetricKind, Value
from launcher.metrics.collector import DurationHistogram, Readings
from launcher.metrics.server import HttpReply

FRESH_S: Final = 0.2
"""Seconds for which a page is reused: it takes some milliseconds, and a client may query in a tight loop."""

VERSIONS: Final = ("0.0.1", "0.0.4", "1.0.0")
"""Versions of OpenMetrics and of Prometheus' text format. A client that requests another one gets text."""


class MetricsPage(Collector):
    """The registry of one agent, and its collector: one family for each row of the table that has samples.

    A page serves all clients that ask for the same format within `FRESH_S`.
    """

    def __init__(self, job_id: str, read: Callable[[], Readings]) -> None:
        """`read` is called for each page that is made."""
        self._job_id = job_id
        self._read = read
        self._made: dict[str, tuple[float, HttpReply]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def page(self, accept: str, now: float) -> HttpReply:
        """Return the page in the format that the header `Accept` names; text if it names none."""
        encode, content_type = choose_encoder(_understood(accept))
        made = self._made.get(content_type)  # Few content types exist, whatever the header lists.
        if made is None or now >= made[0] + FRESH_S:
            made = self._made[content_type] = now, HttpReply(200, content_type, encode(self._registry))
        return made[1]

    def describe(self) -> list[Metric]:
        """Return nothing, so that registration needs no data."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every family."""
        readings = self._read()
        for row in METRICS:
            if samples := row.samples(readings):
                yield self._family(row, samples)

    def _family(self, row: catalog.Metric, samples: Mapping[tuple[str, ...], Value]) -> Metric:
        names = (JOB, *row.labels)  # An info's name is that of its family and an ending.
        family: Any = {
            MetricKind.GAUGE: GaugeMetricFamily,
            MetricKind.COUNTER: CounterMetricFamily,
            MetricKind.INFO: InfoMetricFamily,
            MetricKind.HISTOGRAM: HistogramMetricFamily,
        }[row.kind](row.full.removesuffix("_info"), row.help, labels=(JOB,) if row.kind is MetricKind.INFO else names)
        for labels, value in samples.items():
            if row.kind is MetricKind.INFO:
                family.add_metric((self._job_id,), dict(zip(row.labels, labels, strict=True)))
            elif isinstance(value, DurationHistogram):
                bounds = [*map(floatToGoString, value.buckets), "+Inf"]
                buckets = list(zip(bounds, map(float, value.cumulative), strict=True))
                family.add_metric((self._job_id, *labels), buckets, value.sum_s)
            else:
                family.add_metric((self._job_id, *labels), float(value))
        return family  # type: ignore[no-any-return]


def _understood(accept: str) -> str:
    """Return the known versions of the header. prometheus_client reads any as a number, and sends it back."""
    return ",".join(
        one
        for one in accept.split(",")
        if all(part.strip().removeprefix("version=") in VERSIONS for part in one.split(";") if "version=" in part)
    )
