"""The parts of a Job or JobSet of Kubernetes and its pods that determine its size: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from launcher.k8s.sizing import DIGITS_MAX, WANTED, ScalingView

INDEXES_MAX = 100_000
"""The maximum of Kubernetes for a Job whose indexes are all tracked."""
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


class JobTemplate(msgspec.Struct, frozen=True):
    """The template of each Job of a replicated Job."""

    spec: KubeJobSpec = KubeJobSpec()


class ReplicatedJob(msgspec.Struct, frozen=True):
    """One of spec.replicatedJobs of a JobSet."""

    name: str = ""
    replicas: int = 1
    template: JobTemplate = JobTemplate()


class KubeJobSetSpec(msgspec.Struct, frozen=True, rename="camel"):
    """spec of a JobSet."""

    replicated_jobs: list[ReplicatedJob] = []
    suspend: bool = False


class KubeJobSetStatus(msgspec.Struct, frozen=True):
    """status of a JobSet."""

    conditions: list[KubeCondition] = []


class KubeJobSet(msgspec.Struct, frozen=True):
    """A JobSet."""

    metadata: ObjectMeta
    spec: KubeJobSetSpec
    status: KubeJobSetStatus = KubeJobSetStatus()


class Pod(msgspec.Struct, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    status: PodStatus = PodStatus()


class PodList(msgspec.Struct, frozen=True):
    """A list of pods."""

    metadata: ObjectMeta
    items: list[Pod] = []


class ApiErrorBody(msgspec.Struct, frozen=True):
    """The answer of the server to a rejected request."""

    message: str = ""


class NotScalable(Exception):
    """The JobSet has no replicated Job whose number of pods can be changed; the message lists what it has."""


def job_name(jobset: str, replicated: str) -> str:
    """Return the name that the JobSet controller gives to the first Job of a replicated Job."""
    return f"{jobset}-{replicated}-0"


def scalable_index(jobset: KubeJobSet, replicated: str) -> int:
    """Return the index of a replicated Job in its JobSet. Raises `NotScalable`."""
    names = [entry.name for entry in jobset.spec.replicated_jobs]
    if replicated not in names:
        raise NotScalable(f"it has no replicated Job {replicated}; it has {', '.join(names) or 'none'}")
    index = names.index(replicated)
    if (replicas := jobset.spec.replicated_jobs[index].replicas) != 1:
        raise NotScalable(
            f"its replicated Job {replicated} has {replicas} replicas; the nodes of a job are pods of one"
        )
    return index


def as_job(jobset: KubeJobSet, replicated: str, child: KubeJob | None) -> KubeJob:
    """Return a replicated Job as a Job: size and annotations of the JobSet, uid and indexes of its one Job.

    `child` is None before the JobSet controller has created it. Raises `NotScalable`.
    """
    wanted = jobset.spec.replicated_jobs[scalable_index(jobset, replicated)].template.spec
    status = child.status if child is not None else KubeJobStatus()
    ended = [
        msgspec.structs.replace(condition, type="Complete")
        for condition in jobset.status.conditions
        if condition.type in ("Completed", "Failed")
    ]
    return KubeJob(
        msgspec.structs.replace(jobset.metadata, uid=child.metadata.uid if child is not None else ""),
        KubeJobSpec(wanted.completions, jobset.spec.suspend),
        msgspec.structs.replace(status, conditions=[*status.conditions, *ended]),
    )


def job_patch(job: KubeJob, size: int, *, pinned: bool) -> dict[str, Any]:
    """Return a JSON merge patch that sets both numbers, if the Job is still at the version of `job`.

    `pinned` also writes the size into the annotation `WANTED`, so that the autoscaler keeps it.
    """
    metadata: dict[str, Any] = {"resourceVersion": job.metadata.resource_version}
    if pinned:
        metadata["annotations"] = {WANTED: str(size)}
    return {"metadata": metadata, "spec": {"completions": size, "parallelism": size}}


def jobset_patch(jobset: KubeJobSet, replicated: str, size: int, *, pinned: bool) -> list[dict[str, Any]]:
    """Return the same for a replicated Job, as a JSON patch: a merge patch would replace the whole list of them.

    The API server rejects the patch if the JobSet has another version by then, or another replicated Job at this index.
    """
    index = scalable_index(jobset, replicated)
    entry = f"/spec/replicatedJobs/{index}"
    version = jobset.metadata.resource_version
    operations: list[dict[str, Any]] = [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
        {"op": "test", "path": f"{entry}/name", "value": replicated},
        {"op": "add", "path": f"{entry}/template/spec/parallelism", "value": size},
        {"op": "add", "path": f"{entry}/template/spec/completions", "value": size},
    ]
    if pinned and jobset.metadata.annotations:
        name = WANTED.replace("~", "~0").replace("/", "~1")
        operations.append({"op": "add", "path": f"/metadata/annotations/{name}", "value": str(size)})
    elif pinned:
        operations.append({"op": "add", "path": "/metadata/annotations", "value": {WANTED: str(size)}})
    return operations


def view_of(job: KubeJob, pods: Sequence[Pod]) -> ScalingView:
    """Return the Job as `decide` sees it."""
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
    """Return the indexes below `size` that a text like "0,2-5" names; an invalid part is skipped."""
    found = set[int]()
    for part in text.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdecimal() and last.isdecimal() and max(len(first), len(last)) <= DIGITS_MAX:
            found.update(range(int(first), min(int(last) + 1, size, INDEXES_MAX)))
    return found
