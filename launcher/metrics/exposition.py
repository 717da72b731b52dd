"""The page of metrics: `launcher.metrics.collector` in the words of Prometheus, in text or as OpenMetrics.

`prometheus_client` is imported here, and so only by an agent with `--metrics_port`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

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
from launcher.metrics.catalog import JOB, METRICS, MetricKind
from launcher.metrics.collector import Distribution, MetricSample

FRESH_S: Final = 0.2
"""To make a page takes some milliseconds, and there may be somebody who asks without end."""

VERSIONS: Final = ("0.0.1", "0.0.4", "1.0.0")
"""Of OpenMetrics and of Prometheus' text. Who asks for another one gets text."""


class MetricsReading(NamedTuple):
    """Everything that is known at one moment."""

    samples: tuple[MetricSample, ...]
    distributions: tuple[Distribution, ...]


class RenderedMetrics(NamedTuple):
    """What is sent."""

    content_type: str
    body: bytes


class MetricsPage:
    """The registry of one agent. A page serves whoever asks for the same within `FRESH_S`."""

    def __init__(self, job_id: str, read: Callable[[], MetricsReading]) -> None:
        """`read` is asked for each page that is made."""
        self._made: dict[str, tuple[float, RenderedMetrics]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Families(job_id, read))
        ProcessCollector(registry=self._registry)

    def page(self, accept: str, now: float) -> RenderedMetrics:
        """The page in the form that the header `Accept` asks for; text if it asks for none."""
        encode, content_type = choose_encoder(_understood(accept))
        made = self._made.get(content_type)  # There are only some of them, whatever the header says.
        if made is None or now >= made[0] + FRESH_S:
            made = self._made[content_type] = now, RenderedMetrics(content_type, encode(self._registry))
        return made[1]


def _understood(accept: str) -> str:
    """What of the header names a version that there is. prometheus_client reads any as a number, and sends it back."""
    return ",".join(
        one
        for one in accept.split(",")
        if all(part.strip().removeprefix("version=") in VERSIONS for part in one.split(";") if "version=" in part)
    )


class _Families(Collector):
    """A collector that makes one family for each row of the table of which anything is known."""

    def __init__(self, job_id: str, read: Callable[[], MetricsReading]) -> None:
        self._job_id = job_id
        self._read = read

    def describe(self) -> list[Metric]:
        """So that nothing is asked when it is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        found = self._read()
        for row in METRICS:
            samples = [sample for sample in found.samples if sample.name == row.name]
            lengths = [one for one in found.distributions if one.name == row.name]
            if samples or lengths:
                yield self._family(row, samples, lengths)

    def _family(self, row: catalog.Metric, samples: list[MetricSample], lengths: list[Distribution]) -> Metric:
        names = (JOB, *row.labels)
        match row.kind:
            case MetricKind.GAUGE:
                gauge = GaugeMetricFamily(row.family, row.help, labels=names)
                for sample in samples:
                    gauge.add_metric((self._job_id, *sample.labels), float(sample.value))
                return gauge
            case MetricKind.COUNTER:
                counter = CounterMetricFamily(row.family, row.help, labels=names)
                for sample in samples:
                    counter.add_metric((self._job_id, *sample.labels), float(sample.value))
                return counter
            case MetricKind.INFO:
                info = InfoMetricFamily(row.family, row.help, labels=(JOB,))
                for sample in samples:
                    info.add_metric((self._job_id,), dict(zip(row.labels, sample.labels, strict=True)))
                return info
            case MetricKind.HISTOGRAM:
                histogram = HistogramMetricFamily(row.family, row.help, labels=names)
                bounds = [*map(floatToGoString, row.buckets), "+Inf"]
                for distribution in lengths:
                    buckets = list(zip(bounds, map(float, distribution.counts), strict=True))
                    histogram.add_metric((self._job_id, *distribution.labels), buckets, distribution.sum_s)
                return histogram
