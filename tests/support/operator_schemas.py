"""The schemas of the objects of JobSet, Kubeflow Trainer and Kueue, as their own repositories publish them.

operator_schemas.json is data of those projects (Apache-2.0): the part of each CustomResourceDefinition that describes
an object, without descriptions, defaults and status. What occurs more than once is stored once. To make it from newer
definitions, change `SOURCES` and run

    python -m tests.support.operator_schemas FOLDER

where FOLDER has the files that `SOURCES` names, downloaded from there.
"""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import yaml

from tests.support.kustomize import Thing

DATA: Final = Path(__file__).with_suffix(".json")
SHARED_FROM: Final = 200
"""Characters from which on a part that occurs more than once is stored apart."""
METADATA: Final = ("name", "namespace", "labels", "annotations")
"""What our objects have in metadata, which a definition leaves to the API server."""


class Source(NamedTuple):
    """Where the definition of a kind comes from: one file at one commit, and the version of its objects."""

    kind: str
    version: str
    repository: str
    release: str
    commit: str
    path: str

    @property
    def url(self) -> str:
        """Where to download the file."""
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"


_JOBSET: Final = ("kubernetes-sigs/jobset", "v0.12.0", "f22e565ac3cc3265c7c45ef67ecffdc689af5d77")
_TRAINER: Final = ("kubeflow/trainer", "v2.3.0", "658725bdae5c7e3a0854d93ac6ff492e109a22ab")
_KUEUE: Final = ("kubernetes-sigs/kueue", "v0.19.2", "8eab68778fc1b52affe165fdf5af29d1e9b4f3cb")
_TRAINER_CRDS: Final = "manifests/base/crds/trainer.kubeflow.org_"
_KUEUE_CRDS: Final = "config/components/crd/bases/kueue.x-k8s.io_"
SOURCES: Final = (
    Source("JobSet", "jobset.x-k8s.io/v1alpha2", *_JOBSET, "config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"),
    Source(
        "ClusterTrainingRuntime",
        "trainer.kubeflow.org/v1alpha1",
        *_TRAINER,
        f"{_TRAINER_CRDS}clustertrainingruntimes.yaml",
    ),
    Source("TrainJob", "trainer.kubeflow.org/v1alpha1", *_TRAINER, f"{_TRAINER_CRDS}trainjobs.yaml"),
    Source("ClusterQueue", "kueue.x-k8s.io/v1beta2", *_KUEUE, f"{_KUEUE_CRDS}clusterqueues.yaml"),
    Source("LocalQueue", "kueue.x-k8s.io/v1beta2", *_KUEUE, f"{_KUEUE_CRDS}localqueues.yaml"),
    Source("ResourceFlavor", "kueue.x-k8s.io/v1beta2", *_KUEUE, f"{_KUEUE_CRDS}resourceflavors.yaml"),
)
KINDS: Final = frozenset(source.kind for source in SOURCES)


def validate(thing: Thing) -> None:
    """Raise ValueError if an object is not as its definition wants it. A field that the definition lacks is wrong."""
    (source,) = (each for each in SOURCES if each.kind == thing["kind"])
    if thing["apiVersion"] != source.version:
        raise ValueError(f"{source.kind} is of {thing['apiVersion']}, and its schema of {source.version}")
    errors = sorted(_validator(source.kind).iter_errors(thing), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        raise ValueError("; ".join(f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in errors))


@functools.cache
def _validator(kind: str) -> Any:
    data = json.loads(DATA.read_text())
    schema = strict({**data["schemas"][kind], "$defs": data["parts"]})
    schema["properties"]["metadata"] |= {"properties": {key: {} for key in METADATA}, "additionalProperties": False}
    return jsonschema.Draft202012Validator(schema)


def strict(schema: Any) -> Any:
    """The same, but an object has no other fields than those that its schema names."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made and "additionalProperties" not in made:
        made["additionalProperties"] = bool(made.get("x-kubernetes-preserve-unknown-fields", False))
    return made


def stripped(schema: Any, *, names: bool = False) -> Any:
    """Without what no validation needs; `names`: the keys are names of fields, and not words of the schema."""
    if isinstance(schema, list):
        return [stripped(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: stripped(each, names=name == "properties" and not names)
        for name, each in schema.items()
        if names or name not in ("description", "default", "example")
    }


def definition(source: Source, folder: Path) -> Any:
    """The schema of a kind, from the file of its definition."""
    crd = yaml.safe_load((folder / Path(source.path).name).read_text())
    assert crd["spec"]["names"]["kind"] == source.kind
    version = source.version.rpartition("/")[2]
    (found,) = (each for each in crd["spec"]["versions"] if each["name"] == version and each["served"])
    schema = stripped(found["schema"]["openAPIV3Schema"])
    schema["properties"].pop("status", None)
    return schema


class _Parts:
    """Parts of schemas that occur more than once, each under a name."""

    def __init__(self, schemas: list[Any]) -> None:
        self.parts: dict[str, Any] = {}
        self._count: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        for schema in schemas:
            self._count_in(schema)

    def _count_in(self, schema: Any) -> None:
        if isinstance(schema, dict):
            self._count[_text(schema)] += 1
        for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
            self._count_in(each)

    def without(self, schema: Any, *, names: bool = False, top: bool = True) -> Any:
        """The schema with references in place of them. A map of fields is no schema and has none."""
        if isinstance(schema, list):
            return [self.without(each, top=False) for each in schema]
        if not isinstance(schema, dict):
            return schema
        text = _text(schema)
        if not top and not names and len(text) > SHARED_FROM and self._count[text] > 1:
            if text not in self._names:
                self._names[text] = f"p{len(self._names)}"
                self.parts[self._names[text]] = self.without(schema)
            return {"$ref": f"#/$defs/{self._names[text]}"}
        return {
            name: self.without(each, names=name == "properties" and not names, top=False)
            for name, each in schema.items()
        }


def _text(schema: Any) -> str:
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def main(folder: Path) -> None:
    """Write the file again."""
    found = {source.kind: definition(source, folder) for source in SOURCES}
    parts = _Parts(list(found.values()))
    schemas = {kind: parts.without(schema) for kind, schema in found.items()}
    origins = {source.kind: f"{source.url} ({source.release}, Apache-2.0)" for source in SOURCES}
    sections = {"origins": origins, "schemas": schemas, "parts": parts.parts}
    lines = [
        f'"{title}": {{\n' + ",\n".join(f'"{name}": {json.dumps(each)}' for name, each in section.items()) + "\n}"
        for title, section in sections.items()
    ]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
