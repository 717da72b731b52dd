"""What kustomize makes of deploy/kubernetes, for machines that have none: the parts of it that are used there.

Where kubectl is at hand, a test holds this to what that makes.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "spot")
OF_OPERATORS = ("jobset", "trainjob", "kueue/job", "kueue/jobset", "kueue/queues")
"""Folders with objects of JobSet, Kubeflow Trainer and Kueue."""
FOLDERS = (*(f"overlays/{name}" for name in OVERLAYS), "parameter-server", *OF_OPERATORS)
MERGED_BY: Final = {"containers": "name", "env": "name", "volumes": "name"}
"""Lists whose entries a patch replaces one by one, and what names an entry; it replaces any other list as a whole."""

LOCAL: Final = "config.kubernetes.io/local-config"
"""What has this annotation is read, and not printed."""

Thing = dict[str, Any]


def documents(path: Path) -> list[Thing]:
    """Every document of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def rendered(folder: Path, inherited: Sequence[Thing] = ()) -> list[Thing]:
    """All objects of a kustomization, in no particular order. A component changes those that it inherits."""
    (made,) = documents(folder / "kustomization.yaml")
    known = {"apiVersion", "kind", "namespace", "resources", "components", "patches", "images", "replacements"}
    assert made.keys() <= known, f"{folder}: this renderer does not know {made.keys() - known}"
    things = list(inherited)
    for name in made.get("resources", ()):
        path = folder / name
        things += rendered(path) if path.is_dir() else documents(path)
    for name in made.get("components", ()):
        things = rendered(folder / name, things)
    for patch in made.get("patches", ()):
        for change in documents(folder / patch["path"]):
            (thing,) = (one for one in things if identity(one) == identity(change))
            things[things.index(thing)] = merged(thing, change)
    for image in made.get("images", ()):
        for container in containers(things):
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
    if "namespace" in made:
        for thing in things:
            thing["metadata"]["namespace"] = made["namespace"]
            for subject in thing.get("subjects", ()):
                subject["namespace"] = made["namespace"]
    for replacement in made.get("replacements", ()):
        replace(things, replacement)
    return [thing for thing in things if LOCAL not in thing["metadata"].get("annotations", {})]


def replace(things: list[Thing], replacement: Thing) -> None:
    """Copy a field of one object to fields of others."""
    source = replacement["source"]
    value = field(one(things, source["kind"], source["name"]), steps(source["fieldPath"]))
    for target in replacement["targets"]:
        thing = one(things, target["select"]["kind"], target["select"]["name"])
        for path in target["fieldPaths"]:
            *parents, last = steps(path)
            holder = field(thing, parents)
            assert last in holder or target.get("options", {}).get("create"), path
            holder[last] = copy.deepcopy(value)


def steps(path: str) -> list[str]:
    """The steps of a path such as spec.containers.[name=node].image."""
    return re.findall(r"\[[^\]]*\]|[^.]+", path)


def field(thing: Any, path: Sequence[str]) -> Any:
    """What is at a path: a step is a key, or `[key=value]`, which chooses an entry of a list."""
    for step in path:
        if step.startswith("["):
            key, _, value = step[1:-1].partition("=")
            (thing,) = (entry for entry in thing if entry[key] == value)
        else:
            thing = thing[step]
    return thing


def identity(thing: Thing) -> tuple[str, str]:
    """Kind and name."""
    return thing["kind"], thing["metadata"]["name"]


def merged(old: Any, change: Any, key: str = "") -> Any:
    """A strategic merge."""
    if isinstance(old, dict) and isinstance(change, dict):
        made = {name: merged(old.get(name), value, name) for name, value in change.items() if value is not None}
        return {name: value for name, value in old.items() if name not in change} | made
    by = MERGED_BY.get(key)
    if by and isinstance(old, list) and isinstance(change, list):
        entries = {entry[by]: entry for entry in old}
        changes = {entry[by]: merged(entries.get(entry[by]), entry) for entry in change}
        return [*changes.values(), *(entry for name, entry in entries.items() if name not in changes)]
    return change


def pod_templates(thing: Thing) -> list[Thing]:
    """Every template of pods in an object: those of a JobSet are in its replicated Jobs, and a runtime has a JobSet."""
    spec = thing.get("spec", {})
    if thing["kind"] == "ClusterTrainingRuntime":
        spec = spec["template"]["spec"]
    if "replicatedJobs" in spec:
        return [
            entry["template"]["spec"]["template"] for entry in spec["replicatedJobs"] if "spec" in entry["template"]
        ]
    return [spec["template"]] if "template" in spec else []


def containers(things: list[Thing]) -> Iterator[Thing]:
    """Every container of every pod."""
    for thing in things:
        for template in pod_templates(thing):
            yield from template["spec"]["containers"]


def one(things: list[Thing], kind: str, name: str) -> Thing:
    """The object of this kind and name."""
    (found,) = (thing for thing in things if identity(thing) == (kind, name))
    return found


def command(container: Thing, environment: dict[str, str]) -> list[str]:
    """Its command and arguments, with `$(NAME)` replaced as Kubernetes does it."""
    words = [*container.get("command", ()), *container.get("args", ())]
    for name, value in environment.items():
        words = [word.replace(f"$({name})", value) for word in words]
    return words


def environment(container: Thing, fields: dict[str, str]) -> dict[str, str]:
    """Its variables; `fields` says what the pod itself has, by the path of the field. A value can use earlier ones."""
    made: dict[str, str] = {}
    for entry in container.get("env", ()):
        value = entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        made[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda found: made.get(found[1], found[0]), value)
    return made
