"""What the files of deploy/ say, read as their readers do."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.kustomize import ROOT, Thing

DEPLOY = ROOT / "deploy"
CLOUD = DEPLOY / "cloud"


def filled(cloud: str, folder: Path) -> Path:
    """The settings of a job with every place filled in."""
    path = folder / "job.env"
    path.write_text(re.sub(r"<[A-Z_]+>", "10.0.0.5", (CLOUD / cloud / "job.env").read_text()))
    return path


def user_data(cloud: str, folder: Path) -> str:
    ran = subprocess.run([CLOUD / "user-data.sh", filled(cloud, folder)], capture_output=True, text=True, check=True)
    return ran.stdout


def cloud_files(cloud: str, folder: Path) -> dict[str, str]:
    """What cloud-init writes, by path."""
    document: dict[str, Any] = yaml.safe_load(user_data(cloud, folder))
    return {one["path"]: one["content"] for one in document["write_files"]}


def systemd_unit(name: str) -> configparser.SectionProxy:
    """[Service] of a unit."""
    read = configparser.RawConfigParser(strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(DEPLOY / "systemd" / name)
    return read["Service"]


def environment_file(name: str) -> dict[str, str]:
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


UID: Final = "6a2f1c9e-1b5d-4f0c-9c56-0123456789ab"
FIELDS: Final = {
    "metadata.labels['batch.kubernetes.io/controller-uid']": UID,
    "metadata.labels['batch.kubernetes.io/job-name']": "train",
    "metadata.labels['jobset.sigs.k8s.io/jobset-name']": "train",
    "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
    "metadata.name": "train-0-abcde",
    "metadata.namespace": "elastic",
    "status.podIP": "10.1.2.3",
}


def pod_of(thing: Thing) -> Thing:
    pod: Thing = thing["spec"]["template"]["spec"]
    return pod


def entrypoint() -> list[str]:
    """What the image starts, before the words of a container."""
    (found,) = re.findall(r"^ENTRYPOINT (.*)$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE)
    words = ast.literal_eval(found)
    assert words == ["tini", "--", "elastic-launch"]
    return [str(word) for word in words]
