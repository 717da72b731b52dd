"""What deploy/kubernetes asks of a cluster, and that what it says in several places is the same."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped, unused-ignore]
import pytest

from launcher.config.config import Config
from launcher.config.parse import parse
from tests.support import kustomize
from tests.support.deploy_files import FIELDS, UID, entrypoint, pod_of
from tests.support.kustomize import KUBERNETES, OVERLAYS, ROOT, Thing, one

OLDEST, NEWEST = "1.29", "1.37"
"""Of the versions of Kubernetes whose schemas are at hand: the first with all that is used, and the newest."""
ON_SPOT: Final = {
    "EKS": {"eks.amazonaws.com/capacityType": "SPOT"},
    "Karpenter": {"karpenter.sh/capacity-type": "spot"},
    "GKE": {"cloud.google.com/gke-spot": "true"},
    "AKS": {"kubernetes.azure.com/scalesetpriority": "spot"},
}
SPOT_S, AUTOPILOT_S = 15.0, 25
"""How long GKE's kubelet leaves a pod on a spot machine, and the most that a spot pod of Autopilot may ask for."""
SIZES: Final = {"Mi": 2**20, "Gi": 2**30}

each_overlay = pytest.mark.parametrize("overlay", OVERLAYS)
FOLDERS = (*(f"overlays/{name}" for name in OVERLAYS), "parameter-server")
each_folder = pytest.mark.parametrize("folder", FOLDERS)


def things_of(folder: str) -> list[Thing]:
    return kustomize.rendered(KUBERNETES / folder)


def job_of(overlay: str) -> Thing:
    return one(things_of(f"overlays/{overlay}"), "Job", "train")


def config_of(job: Thing) -> Config:
    """The command line of a Job's pods, read as the agent reads it."""
    (container,) = pod_of(job)["containers"]
    entrypoint()
    environ = kustomize.environment(container, FIELDS)
    return parse(kustomize.command(container, environ), environ)


def bytes_of(quantity: str) -> int:
    return int(quantity[:-2]) * SIZES[quantity[-2:]]


@each_folder
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_as_the_schemas_of_kubernetes_want_it(folder: str, version: str) -> None:
    for thing in things_of(folder):
        kubernetes_validate.validate(thing, version, strict=True)


@each_overlay
def test_the_agent_takes_the_command_line_of_a_pod(overlay: str) -> None:
    config = config_of(job_of(overlay))
    assert config.job_id == UID  # A new Job is a new job.
    assert config.host == "10.1.2.3"
    assert config.servers == ("etcd-0.etcd:2379", "etcd-1.etcd:2379", "etcd-2.etcd:2379")
    assert config.checkpoint_dir == "/shared/checkpoints/train"
    assert config.log_dir == "/shared/log/train-0-abcde"
    assert config.slots_word == ("auto" if overlay == "cpu" else "gpu")


@each_folder
def test_a_pod_has_the_time_that_its_agent_may_take_to_save_and_to_stop(folder: str) -> None:
    jobs = [thing for thing in things_of(folder) if thing["kind"] == "Job"]
    assert jobs
    for job in jobs:
        config = config_of(job)
        assert pod_of(job)["terminationGracePeriodSeconds"] >= config.save_timeout_s + config.stop_timeout_s + 5


def test_on_gke_s_spot_machines_a_node_has_saved_and_stopped_before_the_kubelet_ends_it() -> None:
    job = job_of("spot")
    config = config_of(job)
    assert config.save_timeout_s + config.stop_timeout_s + 3 <= SPOT_S
    assert pod_of(job)["terminationGracePeriodSeconds"] <= AUTOPILOT_S


@each_overlay
def test_completions_and_parallelism_are_one_number_that_np_allows(overlay: str) -> None:
    spec, config = job_of(overlay)["spec"], config_of(job_of(overlay))
    assert spec["completionMode"] == "Indexed"
    assert config.np.low <= spec["completions"] == spec["parallelism"] <= config.np.high


def test_the_autoscaler_has_the_name_and_the_np_of_the_job() -> None:
    things = things_of("overlays/spot")
    (container,) = pod_of(one(things, "Deployment", "autoscaler"))["containers"]
    job = one(things, "Job", "train")
    assert container["args"] == [f"--job={job['metadata']['name']}", f"--np={config_of(job).np}"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert container["command"][-1] in scripts
    assert container["image"] == pod_of(job)["containers"][0]["image"]


def action(job: Thing, code: int, *, disrupted: bool = False) -> str:
    """What the Job's policy does with a pod that ended with this code."""
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if disrupted and {"type": "DisruptionTarget", "status": "True"} in rule.get("onPodConditions", ()):
            return str(rule["action"])
        exits = rule.get("onExitCodes")
        if exits and exits["containerName"] == "node" and exits["operator"] == "In" and code in exits["values"]:
            return str(rule["action"])
    return "Count"


@each_overlay
@pytest.mark.parametrize(
    ("code", "done"),
    [(1, "FailIndex"), (2, "FailJob"), (3, "FailJob"), (4, "Ignore"), (130, "Ignore"), (143, "Ignore"), (137, "Count")],
)
def test_how_a_pod_ended_decides_whether_another_one_comes(overlay: str, code: int, done: str) -> None:
    job = job_of(overlay)
    assert action(job, code) == done
    assert action(job, code, disrupted=True) == "Ignore"  # First: whatever the code, the machine was taken away.
    assert pod_of(job)["restartPolicy"] == "Never"  # Kubernetes takes a policy for pods that fail only with this.
    assert job["spec"]["podReplacementPolicy"] == "Failed"


@each_folder
def test_nothing_runs_as_root_or_can_become_it(folder: str) -> None:
    things = things_of(folder)
    for thing in things:
        if "template" in thing.get("spec", {}):
            assert pod_of(thing)["securityContext"]["runAsNonRoot"] is True
            assert pod_of(thing)["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in kustomize.containers(things):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"].keys() == {"requests", "limits"}


@each_overlay
def test_every_volume_that_is_mounted_is_there_and_shared_memory_is_memory(overlay: str) -> None:
    pod = pod_of(job_of(overlay))
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert bytes_of(mounts["/dev/shm"]["emptyDir"]["sizeLimit"]) < bytes_of(container["resources"]["limits"]["memory"])
    claim = one(things_of(f"overlays/{overlay}"), "PersistentVolumeClaim", "checkpoints")
    assert mounts["/shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("name", ["ps", "workers"])
def test_parameter_servers_and_their_workers_keep_their_checkpoints_on_the_claim_of_an_overlay(name: str) -> None:
    job = one(things_of("parameter-server"), "Job", name)
    (container,) = pod_of(job)["containers"]
    (mounted,) = (mount for mount in container["volumeMounts"] if mount["name"] == "shared")
    (volume,) = (volume for volume in pod_of(job)["volumes"] if volume["name"] == "shared")
    assert config_of(job).checkpoint_dir == f"{mounted['mountPath']}/checkpoints/{config_of(job).job_id}"
    things = things_of("overlays/gpu")
    claim = one(things, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    assert claim["metadata"]["namespace"] == job["metadata"]["namespace"]
    assert pod_of(job)["securityContext"] == pod_of(one(things, "Job", "train"))["securityContext"]


def flags_of_etcd() -> tuple[Thing, dict[str, str]]:
    etcd = one(things_of("overlays/cpu"), "StatefulSet", "etcd")
    (container,) = pod_of(etcd)["containers"]
    words = kustomize.command(container, {"POD_NAME": "etcd-1"})
    assert words[0] == "etcd"
    return etcd, dict(word.removeprefix("--").split("=", 1) for word in words[1:])


def test_the_members_of_etcd_know_each_other_by_the_names_that_kubernetes_gives_them() -> None:
    etcd, flags = flags_of_etcd()
    names = [f"{etcd['metadata']['name']}-{number}" for number in range(etcd["spec"]["replicas"])]
    service = etcd["spec"]["serviceName"]
    assert flags["initial-cluster"] == ",".join(f"{name}=http://{name}.{service}:2380" for name in names)
    assert flags["initial-advertise-peer-urls"] == f"http://etcd-1.{service}:2380"
    assert flags["advertise-client-urls"] == f"http://etcd-1.{service}:2379"
    things = things_of("overlays/cpu")
    labels = etcd["spec"]["template"]["metadata"]["labels"]
    assert one(things, "Service", service)["spec"]["selector"] == labels
    assert one(things, "PodDisruptionBudget", "etcd")["spec"]["selector"]["matchLabels"] == labels
    assert config_of(one(things, "Job", "train")).servers == tuple(f"{name}.{service}:2379" for name in names)


def test_etcd_is_a_version_that_keeps_its_data_is_compacted_and_has_room() -> None:
    etcd, flags = flags_of_etcd()
    (container,) = pod_of(etcd)["containers"]
    (version,) = re.findall(r":(\d+)\.(\d+)\.(\d+)-\d+$", container["image"])
    assert (3, 5, 23) <= tuple(map(int, version)) < (3, 6, 0)
    assert flags["auto-compaction-mode"] == "periodic"
    (claim,) = etcd["spec"]["volumeClaimTemplates"]
    assert bytes_of(claim["spec"]["resources"]["requests"]["storage"]) >= 2 * int(flags["quota-backend-bytes"])
    assert flags["data-dir"].startswith(container["volumeMounts"][0]["mountPath"])


def fits(pod: Thing, labels: dict[str, str]) -> bool:
    """Tell whether a machine with these labels is one for the pod."""
    wish = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return any(all(_holds(each, labels) for each in term["matchExpressions"]) for term in wish["nodeSelectorTerms"])


def _holds(expression: dict[str, Any], labels: dict[str, str]) -> bool:
    among = labels.get(expression["key"]) in expression["values"]
    return among if expression["operator"] == "In" else not among


@pytest.mark.parametrize("cloud", ON_SPOT)
def test_on_each_cloud_nodes_are_on_spot_machines_and_etcd_is_not(cloud: str) -> None:
    things = things_of("overlays/spot")
    node, etcd = pod_of(one(things, "Job", "train")), pod_of(one(things, "StatefulSet", "etcd"))
    assert fits(node, ON_SPOT[cloud])
    assert not fits(node, {})
    assert fits(etcd, {})
    assert not fits(etcd, ON_SPOT[cloud])


def test_nodes_tolerate_the_taints_of_cards_and_of_spot_machines() -> None:
    cpu, gpu, spot = (pod_of(job_of(overlay))["tolerations"] for overlay in ("cpu", "gpu", "spot"))
    assert [entry for entry in cpu if entry not in gpu] == [entry for entry in gpu if entry not in spot] == []
    assert {entry["key"] for entry in spot} == {
        "node.kubernetes.io/unreachable",
        "nvidia.com/gpu",
        "cloud.google.com/gke-spot",
        "kubernetes.azure.com/scalesetpriority",
    }
