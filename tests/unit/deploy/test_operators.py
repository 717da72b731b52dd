"""What deploy/kubernetes asks of JobSet, Kubeflow Trainer and Kueue, by the schemas that they publish."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped, unused-ignore]
import pytest

from launcher.config.config import Config
from launcher.config.parse import parse
from tests.support import kustomize, operator_schemas
from tests.support.deploy_files import FIELDS, UID, pod_of
from tests.support.kustomize import KUBERNETES, OF_OPERATORS, OVERLAYS, ROOT, Thing, containers, one, pod_templates

OLDEST, NEWEST = "1.29", "1.37"
QUEUE, ELASTIC, PARTIAL = (
    "kueue.x-k8s.io/queue-name",
    "kueue.x-k8s.io/elastic-job",
    "kueue.x-k8s.io/job-min-parallelism",
)
ANCESTOR: Final = "trainer.kubeflow.org/trainjob-ancestor-step"

each_folder = pytest.mark.parametrize("folder", OF_OPERATORS)


def things_of(folder: str) -> list[Thing]:
    return kustomize.rendered(KUBERNETES / folder)


def jobset_of(folder: str) -> Thing:
    return one(things_of(folder), "JobSet", "train")


def replicated_of(thing: Thing) -> Thing:
    """The one replicated Job of a JobSet or of a runtime."""
    spec = thing["spec"]["template"]["spec"] if thing["kind"] == "ClusterTrainingRuntime" else thing["spec"]
    (entry,) = spec["replicatedJobs"]
    return dict(entry)


def runtime() -> Thing:
    return one(things_of("trainjob"), "ClusterTrainingRuntime", "elastic-launch")


def train_job() -> Thing:
    (found,) = kustomize.documents(KUBERNETES / "trainjob" / "trainjob.yaml")
    return found


def config_of(container: Thing) -> Config:
    environ = kustomize.environment(container, FIELDS)
    return parse(kustomize.command(container, environ), environ)


def of_operators() -> list[tuple[str, Thing]]:
    made = [(folder, thing) for folder in OF_OPERATORS for thing in things_of(folder)]
    return [(folder, thing) for folder, thing in made if thing["kind"] in operator_schemas.KINDS] + [
        ("trainjob.yaml", train_job())
    ]


# The schemas.


@each_folder
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_as_its_schema_wants_it(folder: str, version: str) -> None:
    things = things_of(folder)
    for thing in things:
        if thing["kind"] in operator_schemas.KINDS:
            operator_schemas.validate(thing)
        else:
            kubernetes_validate.validate(thing, version, strict=True)
        if thing["kind"] in ("JobSet", "ClusterTrainingRuntime"):
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train-node-0"}}
            kubernetes_validate.validate(job | {"spec": replicated_of(thing)["template"]["spec"]}, version, strict=True)


def test_the_example_of_a_trainjob_is_as_its_schema_wants_it() -> None:
    operator_schemas.validate(train_job())


def test_every_kind_whose_schema_is_stored_is_one_that_the_manifests_use() -> None:
    assert {thing["kind"] for _, thing in of_operators()} == operator_schemas.KINDS


@pytest.mark.parametrize(
    ("kind", "path", "value", "said"),
    [
        ("JobSet", ["spec", "replicas"], 1, "'replicas' was unexpected"),
        ("JobSet", ["spec", "replicatedJobs", 0, "replicas"], "1", "is not of type 'integer'"),
        ("JobSet", ["spec", "replicatedJobs", 0, "template", "spec", "paralelism"], 2, "'paralelism' was unexpected"),
        ("JobSet", ["spec", "network", "enableDNSHostnames"], "no", "is not of type 'boolean'"),
        ("JobSet", ["metadata", "label"], {}, "'label' was unexpected"),
        ("JobSet", ["apiVersion"], "jobset.x-k8s.io/v1", "its schema of jobset.x-k8s.io/v1alpha2"),
        ("ClusterTrainingRuntime", ["spec", "mlPolicy", "elastic"], {}, "'elastic' was unexpected"),
        ("ClusterTrainingRuntime", ["spec", "template", "spec", "replicatedJobs"], {}, "is not of type 'array'"),
        ("TrainJob", ["spec", "trainer", "nodes"], 2, "'nodes' was unexpected"),
        ("TrainJob", ["spec", "trainer", "numNodes"], "2", "is not of type 'integer'"),
        ("ClusterQueue", ["spec", "resourceGroups", 0, "flavors", 0, "resources", 0, "quota"], 1, "'quota'"),
        ("LocalQueue", ["spec", "queue"], "x", "'queue' was unexpected"),
        ("ResourceFlavor", ["spec"], {"labels": {}}, "'labels' was unexpected"),
    ],
)
def test_a_wrong_field_is_refused(kind: str, path: Sequence[str | int], value: object, said: str) -> None:
    thing = copy.deepcopy(next(thing for _, thing in of_operators() if thing["kind"] == kind))
    holder: Any = thing
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    with pytest.raises(ValueError) as caught:
        operator_schemas.validate(thing)
    assert said in str(caught.value)


def test_the_page_names_the_release_of_every_schema() -> None:
    page = (ROOT / "docs" / "guides/kubernetes-operators.md").read_text()
    for source in operator_schemas.SOURCES:
        assert f"`{source.kind}` | {source.repository} {source.release}" in page, source
        assert f"https://github.com/{source.repository}/blob/{source.release}/{source.path}" in page


# JobSet.


def test_the_jobset_has_the_pods_of_the_job_of_the_overlay() -> None:
    job = copy.deepcopy(one(things_of("overlays/cpu"), "Job", "train")["spec"])
    made = copy.deepcopy(replicated_of(jobset_of("jobset"))["template"]["spec"])
    assert job.pop("ttlSecondsAfterFinished") == jobset_of("jobset")["spec"]["ttlSecondsAfterFinished"]
    for spec in (job, made):
        (container,) = spec["template"]["spec"]["containers"]
        container["env"] = [entry for entry in container["env"] if entry["name"] != "JOB_NAME"]
    assert made == job


@pytest.mark.parametrize("folder", ["jobset", "kueue/jobset"])
def test_the_agent_takes_the_command_line_of_a_pod_of_the_jobset(folder: str) -> None:
    (container,) = containers([jobset_of(folder)])
    config = config_of(container)
    assert (config.job_id, config.host) == (UID, "10.1.2.3")
    assert config.checkpoint_dir == "/shared/checkpoints/train"
    spec = replicated_of(jobset_of(folder))["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert config.np.low <= spec["completions"] == spec["parallelism"] <= config.np.high
    assert (
        spec["template"]["spec"]["terminationGracePeriodSeconds"] >= config.save_timeout_s + config.stop_timeout_s + 5
    )


@each_folder
def test_a_jobset_or_a_runtime_takes_the_place_of_the_job(folder: str) -> None:
    kinds = [thing["kind"] for thing in things_of(folder)]
    launched = [kind for kind in kinds if kind in ("Job", "JobSet", "ClusterTrainingRuntime")]
    assert len(launched) == (0 if folder == "kueue/queues" else 1)


@each_folder
def test_no_pod_runs_as_root_or_can_become_it(folder: str) -> None:
    things = things_of(folder)
    for template in (template for thing in things for template in pod_templates(thing)):
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    for container in containers(things):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["resources"].keys() == {"requests", "limits"}


@pytest.mark.parametrize("folder", ["jobset", "trainjob"])
def test_the_autoscaler_may_do_what_it_asks_for_and_names_the_jobset(folder: str) -> None:
    things = things_of(folder)
    (container,) = pod_of(one(things, "Deployment", "autoscaler"))["containers"]
    jobset = jobset_of("jobset") if folder == "jobset" else train_job()  # Trainer gives the JobSet its TrainJob's name.
    name = jobset["metadata"]["name"]
    launched = jobset if folder == "jobset" else runtime()
    (node,) = containers([launched])
    assert container["args"] == [f"--jobset={name}", f"--np={config_of(node).np}"]
    assert container["image"] == node["image"]
    replicated = replicated_of(launched)
    assert (replicated["name"], replicated["replicas"]) == ("node", 1)
    rules = one(things, "Role", "autoscaler")["rules"]
    named = {rule["resources"][0]: (rule.get("resourceNames"), rule["verbs"]) for rule in rules}
    assert named == {
        "jobsets": ([name], ["get", "patch"]),
        "jobs": ([f"{name}-node-0"], ["get"]),
        "pods": (None, ["list", "watch"]),
    }


# Kubeflow Trainer.


def test_the_runtime_is_one_whose_nodes_trainer_finds_and_for_which_it_makes_no_variables() -> None:
    assert runtime()["spec"]["mlPolicy"].keys() == {"numNodes"}
    entry = replicated_of(runtime())
    assert entry["template"]["metadata"]["labels"][ANCESTOR] == "trainer"
    (container,) = containers([runtime()])
    assert container["name"] == "node"  # Trainer writes image and arguments into the container of this name.
    assert "namespace" not in runtime()["metadata"]


def test_a_trainjob_gives_the_script_and_the_runtime_all_else() -> None:
    (container,) = containers([runtime()])
    trainer = train_job()["spec"]["trainer"]
    own = {entry["name"] for entry in trainer["env"]}
    merged = container | {
        "args": trainer["args"],
        "env": [entry for entry in container["env"] if entry["name"] not in own] + trainer["env"],
    }
    config = config_of(merged)
    (plain,) = containers([one(things_of("overlays/cpu"), "Job", "train")])
    assert (config.script, list(config.script_args)) == ("train.py", ["--lr", "0.1"])
    for given in (config, config_of(container)):
        expected = config_of(plain)
        assert (given.servers, given.job_id, given.log_dir) == (expected.servers, UID, expected.log_dir)
        assert given.checkpoint_dir == "/shared/checkpoints/train"
        assert given.np == expected.np
    assert config.np.low <= trainer["numNodes"] <= config.np.high
    assert train_job()["spec"]["runtimeRef"]["name"] == runtime()["metadata"]["name"]
    assert (
        train_job()["metadata"]["namespace"]
        == one(things_of("trainjob"), "StatefulSet", "etcd")["metadata"]["namespace"]
    )


# Kueue.


@pytest.mark.parametrize(("folder", "kind"), [("kueue/job", "Job"), ("kueue/jobset", "JobSet")])
def test_a_job_in_a_queue_is_suspended_and_names_a_queue_that_admits_it(folder: str, kind: str) -> None:
    thing = one(things_of(folder), kind, "train")
    assert thing["spec"]["suspend"] is True
    queues = things_of("kueue/queues")
    local = one(queues, "LocalQueue", thing["metadata"]["labels"][QUEUE])
    assert local["metadata"]["namespace"] == thing["metadata"]["namespace"]
    cluster = one(queues, "ClusterQueue", local["spec"]["clusterQueue"])
    selected = cluster["spec"]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
    assert selected == thing["metadata"]["namespace"]
    for group in cluster["spec"]["resourceGroups"]:
        for flavor in group["flavors"]:
            one(queues, "ResourceFlavor", flavor["name"])
            assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]


def test_the_queue_has_a_quota_for_all_that_the_pods_of_any_overlay_request() -> None:
    covered = {
        name
        for group in one(things_of("kueue/queues"), "ClusterQueue", "elastic-launch")["spec"]["resourceGroups"]
        for name in group["coveredResources"]
    }
    for overlay in OVERLAYS:
        (container,) = containers([one(things_of(f"overlays/{overlay}"), "Job", "train")])
        assert {*container["resources"]["requests"], *container["resources"]["limits"]} <= covered


def test_the_job_is_elastic_for_kueue_and_not_partially_admitted_which_exclude_each_other() -> None:
    annotations = one(things_of("kueue/job"), "Job", "train")["metadata"]["annotations"]
    assert annotations[ELASTIC] == "true"
    assert PARTIAL not in annotations


def test_no_autoscaler_changes_the_size_of_a_jobset_in_a_queue_which_would_stop_it() -> None:
    assert "Deployment" not in {thing["kind"] for thing in things_of("kueue/jobset")}
    assert ELASTIC not in jobset_of("kueue/jobset")["metadata"].get("annotations", {})
