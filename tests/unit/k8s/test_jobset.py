"""A JobSet as the autoscaler and `elastic-ctl scale` see it, and the patches that change a size, as values."""

from __future__ import annotations

import msgspec
import pytest

from launcher.k8s.objects import KubeJob, KubeJobSet, NotScalable, as_job, job_name, job_patch, jobset_patch, view_of
from launcher.k8s.sizing import ScalingView

JOBSET = b"""{"kind": "JobSet", "metadata": {"name": "train", "uid": "s", "resourceVersion": "7"},
    "spec": {"replicatedJobs": [
        {"name": "init", "replicas": 3, "template": {"spec": {}}},
        {"name": "node", "template": {"spec": {"completions": 4, "parallelism": 4, "template": {}}}}]},
    "status": {"restarts": 0, "conditions": [{"type": "StartupPolicyCompleted", "status": "True", "reason": "x"}]}}"""
CHILD = b"""{"metadata": {"uid": "c", "resourceVersion": "9", "annotations": {"elastic-launch/nodes": "1"}},
    "spec": {"completions": 3, "suspend": false}, "status": {"completedIndexes": "0", "failedIndexes": "3"}}"""


def jobset(text: bytes = JOBSET) -> KubeJobSet:
    return msgspec.json.decode(text, type=KubeJobSet)


def child() -> KubeJob:
    return msgspec.json.decode(CHILD, type=KubeJob)


def test_the_jobset_says_the_size_and_its_job_which_pods_are_its_own_and_which_have_ended() -> None:
    job = as_job(jobset(), "node", child())
    assert (job.metadata.uid, job.metadata.resource_version, job.metadata.annotations) == ("c", "7", {})
    assert view_of(job, []) == ScalingView(4, done=frozenset({0, 3}))


def test_before_the_job_is_created_the_jobset_has_a_size_and_no_pods() -> None:
    job = as_job(jobset(), "node", None)
    assert (job.metadata.uid, view_of(job, [])) == ("", ScalingView(4))


@pytest.mark.parametrize("kind", ["Completed", "Failed"])
def test_a_jobset_that_has_ended_has_ended_whatever_its_job_says(kind: str) -> None:
    ended = jobset(JOBSET.replace(b"StartupPolicyCompleted", kind.encode()))
    assert view_of(as_job(ended, "node", child()), []).ended
    still = jobset(JOBSET.replace(b"StartupPolicyCompleted", kind.encode()).replace(b'"True"', b'"False"'))
    assert not view_of(as_job(still, "node", child()), []).ended


def test_a_suspended_jobset_is_suspended_also_when_its_job_is_not_yet() -> None:
    suspended = jobset(JOBSET.replace(b'"spec": {"replicatedJobs"', b'"spec": {"suspend": true, "replicatedJobs"'))
    assert view_of(as_job(suspended, "node", child()), []).suspended


def test_a_replicated_job_that_is_missing_or_is_several_jobs_cannot_be_scaled() -> None:
    with pytest.raises(NotScalable, match=r"has no replicated Job workers; it has init, node"):
        as_job(jobset(), "workers", None)
    with pytest.raises(NotScalable, match=r"init has 3 replicas"):
        jobset_patch(jobset(), "init", 2, pinned=False)
    with pytest.raises(NotScalable, match=r"it has none"):
        as_job(jobset(b'{"metadata": {}, "spec": {}}'), "node", None)


def test_the_patch_of_a_jobset_names_the_version_the_place_and_both_numbers() -> None:
    spec = "/spec/replicatedJobs/1/template/spec"
    assert jobset_patch(jobset(), "node", 6, pinned=False) == [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "test", "path": "/spec/replicatedJobs/1/name", "value": "node"},
        {"op": "add", "path": f"{spec}/parallelism", "value": 6},
        {"op": "add", "path": f"{spec}/completions", "value": 6},
    ]


def test_a_pinned_size_is_an_annotation_too_whether_or_not_there_are_others() -> None:
    pinned = jobset_patch(jobset(), "node", 6, pinned=True)
    assert pinned[-1] == {"op": "add", "path": "/metadata/annotations", "value": {"elastic-launch/nodes": "6"}}
    annotated = jobset(JOBSET.replace(b'"uid"', b'"annotations": {"a": "b"}, "uid"'))
    pinned = jobset_patch(annotated, "node", 6, pinned=True)
    assert pinned[-1] == {"op": "add", "path": "/metadata/annotations/elastic-launch~1nodes", "value": "6"}
    assert job_patch(child(), 6, pinned=True) == {
        "metadata": {"resourceVersion": "9", "annotations": {"elastic-launch/nodes": "6"}},
        "spec": {"completions": 6, "parallelism": 6},
    }


def test_the_job_of_a_replicated_job_has_the_name_that_jobset_gives_it() -> None:
    assert job_name("train", "node") == "train-node-0"
