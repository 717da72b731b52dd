"""elastic-k8s-autoscaler on a JobSet, on an API server with a webhook that refuses what that of JobSet refuses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.autoscaler_process import scaler, story
from tests.support.fake_jobset import FIELDS, GROUP, JSON_PATCH, JobSetCluster, merge_patched, patched
from tests.support.fake_kubernetes import MERGE_PATCH, NAME, NAMESPACE

SPEC = "/spec/replicatedJobs/0/template/spec"


@story
async def test_a_jobset_grows_to_the_machines_that_come_and_no_running_pod_is_ever_taken(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=2, machines=3)
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "2:5", flag="--jobset") as autoscaler:
        assert await autoscaler.says("from 2") == "JobSet train: from 2 to 5 pods: all 2 pods running"
        assert await autoscaler.says("from 5") == "JobSet train: from 5 to 3 pods: 2 pods found no machine in 0.3 s"
        assert cluster.taken[:2] == [(3, "Pending"), (4, "Pending")]
        await cluster.change(machines=5)
        await cluster.until(size=5, running=5)
        assert cluster.size == 5
        assert {phase for _, phase in cluster.taken} == {"Pending"}

        cluster.jobset["metadata"]["annotations"]["elastic-launch/nodes"] = "2"
        await cluster.change()
        await cluster.until(size=2, running=2)
        assert "the annotation elastic-launch/nodes is 2" in await autoscaler.says("annotation")


@story
async def test_a_change_of_the_size_leaves_all_else_of_the_jobset_as_it_is(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=2, machines=4)
    other = {"name": "other", "template": {"spec": dict.fromkeys(FIELDS, 1)}}
    cluster.jobset["spec"]["replicatedJobs"].insert(0, other)
    wanted = copy.deepcopy(cluster.jobset["spec"])
    wanted["replicatedJobs"][1]["template"]["spec"] |= dict.fromkeys(FIELDS, 4)
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:4", flag="--jobset") as autoscaler:
        await autoscaler.says("from 2 to 4")
        await cluster.until(size=4, running=4)
    assert cluster.jobset["spec"] == wanted


@story
async def test_somebody_who_was_faster_costs_a_second_try_and_no_line(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=1, machines=2)
    cluster.disturb = 2
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:2", flag="--jobset") as autoscaler:
        assert await autoscaler.says("") == "JobSet train: from 1 to 2 pods: all 1 pod running"
        await cluster.until(size=2, running=2)
    assert len(cluster.patches) == 1


@story
async def test_a_jobset_whose_controller_lacks_the_feature_gate_is_one_line_that_names_it(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=1, machines=2)
    cluster.gate = False
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:2", flag="--jobset") as autoscaler:
        line = await autoscaler.says("JobSet train")
        assert line.endswith("use JobSet 0.12 or later and turn on its feature gate ElasticJobSet; retrying")
        cluster.gate = True
        await cluster.until(size=2, running=2)


@story
async def test_a_jobset_that_is_suspended_has_ended_or_has_no_job_yet_is_left_alone(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=2, machines=9)
    cluster.created, cluster.jobset["spec"]["suspend"] = False, True
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:4", flag="--jobset") as autoscaler:
        await autoscaler.says("JobSet train: it is suspended")
    cluster.jobset["spec"]["suspend"] = False
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:4", flag="--jobset") as autoscaler:
        await autoscaler.says("JobSet train: 0 of 2 pods running")
    cluster.created = True
    await cluster.end()
    async with cluster.serve() as server, scaler(tmp_path, server, "--np", "1:4", flag="--jobset") as autoscaler:
        await autoscaler.says("JobSet train: it has ended")
    assert cluster.patches == []


@story
async def test_a_replicated_job_that_the_jobset_lacks_is_one_line_that_names_those_it_has(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=2, machines=2)
    words = ("--np", "1:4", "--replicated-job", "workers")
    async with cluster.serve() as server:
        cluster.rules[1]["resourceNames"] = ["train-workers-0"]
        async with scaler(tmp_path, server, *words, flag="--jobset") as autoscaler:
            line = await autoscaler.says("JobSet train")
            assert line == "JobSet train: it has no replicated Job workers; it has node; waiting for another one"


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([("parallelism", 3)], "completions must be equal to parallelism for Elastic Indexed Jobs"),
        ([("parallelism", 0), ("completions", 0)], "parallelism must be >= 1"),
        ([("backoffLimit", 3)], "field is immutable"),
        ([("parallelism", 3), ("completions", 3)], ""),
    ],
)
def test_the_server_of_these_tests_refuses_what_the_webhook_of_jobset_refuses(
    operations: list[tuple[str, int]], said: str, tmp_path: Path
) -> None:
    patch = [{"op": "add", "path": f"{SPEC}/{name}", "value": value} for name, value in operations]

    @story
    async def run(_: Path) -> None:
        cluster = JobSetCluster(size=2, machines=9)
        async with cluster.serve() as server:
            code, message = await sent(server, patch)
            assert (code, said in message) == (422 if said else 200, True)

    run(tmp_path)


@story
async def test_the_webhook_of_these_tests_refuses_a_new_size_after_the_end(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=2, machines=9)
    patch = [{"op": "add", "path": f"{SPEC}/{name}", "value": 3} for name in FIELDS]
    async with cluster.serve() as server:
        assert (await sent(server, patch, "application/strategic-merge-patch+json"))[0] == 415
        await cluster.end("Failed")
        code, message = await sent(server, patch)
        assert (code, "terminal state" in message) == (422, True)


@story
async def test_a_merge_patch_of_the_list_would_replace_the_replicated_jobs(tmp_path: Path) -> None:
    cluster = JobSetCluster(size=2, machines=9)
    size = {"name": "node", "template": {"spec": {"completionMode": "Indexed", "parallelism": 3, "completions": 3}}}
    async with cluster.serve() as server:
        code, message = await sent(server, {"spec": {"replicatedJobs": [size]}}, MERGE_PATCH)
        assert (code, "field is immutable" in message) == (422, True)


async def sent(server: str, patch: Any, kind: str = JSON_PATCH) -> tuple[int, str]:
    url = f"{server}/apis/{GROUP}/v1alpha2/namespaces/{NAMESPACE}/jobsets/{NAME}"
    headers = {"Authorization": "Bearer first", "Content-Type": kind}
    async with aiohttp.ClientSession() as session, session.patch(url, json=patch, headers=headers) as answer:
        return answer.status, (await answer.json()).get("message", "")


def test_a_json_patch_adds_replaces_and_tests_or_changes_nothing() -> None:
    thing = {"a": {"x/y": 1}, "list": [{"name": "n"}]}
    assert patched(thing, [{"op": "add", "path": "/a/x~1y", "value": 2}])["a"] == {"x/y": 2}
    assert patched(thing, [{"op": "test", "path": "/list/0/name", "value": "n"}]) == thing
    for wrong in (
        {"op": "test", "path": "/list/0/name", "value": "m"},
        {"op": "replace", "path": "/a/missing", "value": 1},
        {"op": "add", "path": "/list/1/name", "value": 1},
    ):
        with pytest.raises((LookupError, ValueError)):
            patched(thing, [wrong])
    assert merge_patched(thing, {"a": None, "list": [1]}) == {"list": [1]}
