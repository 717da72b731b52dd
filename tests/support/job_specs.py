"""Specs of jobs of any mode."""

from __future__ import annotations

from typing import Any

import msgspec

from elastic.core.model import JobMode, JobSpec
from elastic.core.ps.model import PS_MODES, PsJobSpec, PsLayout


def job_spec(**fields: Any) -> JobSpec:
    """The spec with these fields, of the type that its mode has; a `layout` makes it one of parameter servers."""
    if "layout" in fields or fields.get("mode") in PS_MODES:
        return PsJobSpec(**{"layout": PsLayout(), **fields})
    return JobSpec(**fields)


def with_fields(spec: JobSpec, **fields: Any) -> JobSpec:
    """The same spec with other fields; a `layout` makes it one of parameter servers."""
    if "layout" in fields:
        fields = {"mode": JobMode.PS, **fields}
    return job_spec(**msgspec.structs.asdict(spec) | fields)
