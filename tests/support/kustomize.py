"""What kustomize makes of deploy/kubernetes, for machines that have none: the parts of it that are used there.

Where kubectl is at hand, a test holds this to what that makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("cpu", "gpu", "spot")
MERGED_BY: Final = {"containers": "name", "env": "name", "volumes": "name"}
"""Lists whose entries a patch replaces one by one, and what names an entry; it replaces any other list as a whole."""

Thing = dict[str, Any]


def documents(path: Path) -> list[Thing]:
    """Every document of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def rendered(folder: Path) -> list[Thing]:
    """All objects of a kustomization, in no particular order."""
    (made,) = documents(folder / "kustomization.yaml")
    known = {"apiVersion", "kind", "namespace", "resources", "components", "patches", "images"}
    assert made.keys() <= known, f"{folder}: this renderer does not know {made.keys() - known}"
    things: list[Thing] = []
    for name in (*made.get("resources", ()), *made.get("components", ())):
        path = folder / name
        things += rendered(path) if path.is_dir() else documents(path)
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
    return things


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


def containers(things: list[Thing]) -> Iterator[Thing]:
    """Every container of every pod."""
    for thing in things:
        if "template" in thing.get("spec", {}):
            yield from thing["spec"]["template"]["spec"]["containers"]


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
    """Its variables; `fields` says what the pod itself has, by the path of the field."""
    return {
        entry["name"]: entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container.get("env", ())
    }
