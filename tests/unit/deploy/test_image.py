"""The image of deploy/Dockerfile: what it is made of is named exactly, and once."""

from __future__ import annotations

import re
import tomllib
from typing import Any, Final

import pytest

from tests.support.kustomize import ROOT

DOCKERFILE: Final = (ROOT / "deploy" / "Dockerfile").read_text()
CONSTRAINTS: Final = "constraints.txt"


def arguments() -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.MULTILINE))


def name_of(requirement: str) -> str:
    """The name of a package, as an index compares it."""
    (name,) = re.findall(r"^[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", str(name)).lower()


def pinned() -> set[str]:
    lines = (ROOT / CONSTRAINTS).read_text().splitlines()
    return {name_of(line) for line in lines if re.fullmatch(r"[\w.-]+==[\w.+]+", line)}


def test_every_stage_starts_from_the_one_image_that_a_digest_names() -> None:
    stages = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(stages) == {"${PYTHON_IMAGE}"}
    assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", arguments()["PYTHON_IMAGE"])


def test_every_pip_install_of_the_image_obeys_the_constraints() -> None:
    commands = re.findall(r"^RUN (.*)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
    installs = [command for command in commands if "pip install" in command]
    assert len(installs) == 2
    (copied,) = re.findall(rf"^COPY {re.escape(CONSTRAINTS)} (\S+)$", DOCKERFILE, re.MULTILINE)
    assert [f"--constraint {copied} " in command for command in installs] == [True, True]


def test_the_constraints_name_a_version_of_all_that_the_package_and_the_extras_of_the_image_need() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = list(project["dependencies"])
    for extra in arguments()["EXTRAS"].split(","):
        needed += project["optional-dependencies"][extra]
    assert {name_of(one) for one in needed} - pinned() == set()


@pytest.mark.parametrize("line", re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE))
def test_what_the_dockerfile_copies_is_sent_to_the_builder(line: str) -> None:
    kept = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    for path in line.split():
        assert f"!{path}" in kept
        assert (ROOT / path).exists()
