"""A page of metrics as Prometheus reads it: every sample by its name and the values of its own labels."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from launcher.metrics.catalog import JOB, PREFIX

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
"""The header `Accept` of who wants that."""


def families(text: str) -> list[Metric]:
    """The families of a page in OpenMetrics. Raises ValueError for what is none."""
    return list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def samples(text: str, *, job_id: str) -> dict[str, float]:
    """`{"elastic_launch_members": 2.0, "elastic_launch_state{running}": 1.0}`, of a page in either form."""
    if text.endswith("# EOF\n"):
        return _by_name(families(text), job_id)
    return _by_name(text_string_to_metric_families(text), job_id)


def _by_name(found: Iterable[Metric], job_id: str) -> dict[str, float]:
    made: dict[str, float] = {}
    for family in found:
        for sample in family.samples:
            own = [value for name, value in sorted(sample.labels.items()) if name != JOB]
            if sample.name.startswith(PREFIX):
                assert sample.labels[JOB] == job_id
            words = ",".join(own) if "node" not in sample.labels else ""
            made[f"{sample.name}{{{words}}}" if words else sample.name] = sample.value
    return made
