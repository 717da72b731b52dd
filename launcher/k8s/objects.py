"""A Job of Kubernetes and its pods, as far as they count for how large it is to be: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from launcher.k8s.sizing import DIGITS_MAX, WANTED, ScalingView

INDEXES_MAX = 100_000
"""Of a Job whose indexes are all tracked, Kubernetes allows as many."""
INDEX: Final = "batch.kubernetes.io/job-completion-index"


class ObjectMeta(msgspec.Struct, frozen=True, rename="camel"):
    """metadata."""

    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}
    deletion_timestamp: str | None = None


class KubeCondition(msgspec.Struct, frozen=True):
    """One of status.conditions."""

    type: str = ""
    status: str = ""
    reason: str = ""


class PodStatus(msgspec.Struct, frozen=True):
    """status of a pod."""

    phase: str = ""
    conditions: list[KubeCondition] = []


class KubeJobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """status of a Job. Indexes are written as "0,2-5"; they stay when their pods are gone."""

    conditions: list[KubeCondition] = []
    completed_indexes: str = ""
    failed_indexes: str = ""


class KubeJobSpec(msgspec.Struct, frozen=True):
    """spec of a Job."""

    completions: int | None = None
    suspend: bool = False


class KubeJob(msgspec.Struct, frozen=True):
    """A Job."""

    metadata: ObjectMeta
    spec: KubeJobSpec
    status: KubeJobStatus = KubeJobStatus()


class Pod(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    status: PodStatus = PodStatus()


class PodList(msgspec.Struct, frozen=True):
    """A list of pods."""

    metadata: ObjectMeta
    items: list[Pod] = []


class ApiErrorBody(msgspec.Struct, frozen=True):
    """What the server says instead."""

    message: str = ""


def view_of(job: KubeJob, pods: Sequence[Pod]) -> ScalingView:
    """The Job as `decide` sees it."""
    size = job.spec.completions or 0
    by_state: dict[str, set[int]] = {"running": set(), "waiting": set()}
    done = _indexes(job.status.completed_indexes, size) | _indexes(job.status.failed_indexes, size)
    for pod in pods:
        text = pod.metadata.annotations.get(INDEX, "")
        if not text.isdecimal() or len(text) > DIGITS_MAX or int(text) >= size:
            continue
        without = any(
            condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"
            for condition in pod.status.conditions
        )
        if pod.status.phase == "Succeeded":
            done.add(int(text))
        elif pod.metadata.deletion_timestamp is None and pod.status.phase == "Running":
            by_state["running"].add(int(text))
        elif pod.metadata.deletion_timestamp is None and pod.status.phase == "Pending" and without:
            by_state["waiting"].add(int(text))
    return ScalingView(
        size=size,
        running=frozenset(by_state["running"] - done),
        waiting=frozenset(by_state["waiting"] - done),
        done=frozenset(done),
        wanted=job.metadata.annotations.get(WANTED, "").strip(),
        ended=any(
            condition.type in ("Complete", "Failed") and condition.status == "True"
            for condition in job.status.conditions
        ),
        suspended=job.spec.suspend,
    )


def _indexes(text: str, size: int) -> set[int]:
    """The indexes below `size` that a text like "0,2-5" names; a part of it that is none is passed over."""
    found = set[int]()
    for part in text.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdecimal() and last.isdecimal() and max(len(first), len(last)) <= DIGITS_MAX:
            found.update(range(int(first), min(int(last) + 1, size, INDEXES_MAX)))
    return found
