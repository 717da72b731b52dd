"""The files of deploy/ under the checkers of their own kinds. Where one is not installed, its test skips."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit import kustomize
from tests.unit.kustomize import KUBERNETES, ROOT
from tests.unit.test_deploy_cloud import files

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
SCRIPTS = sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".sh", ".sbatch"))


def accepted(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_a_script(script: Path) -> None:
    accepted(BIN / "shellcheck", "--shell=bash", script)


def test_shellcheck_finds_nothing_in_what_cloud_init_writes_on_a_machine(tmp_path: Path) -> None:
    (text,) = [text for path, text in files("aws", tmp_path).items() if path.endswith(".sh")]
    (script := tmp_path / "setup.sh").write_text(text)
    accepted(BIN / "shellcheck", "--shell=bash", script)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    accepted(BIN / "hadolint", DEPLOY / "Dockerfile")


def test_the_compose_file_is_as_the_specification_of_compose_wants_it() -> None:
    accepted(
        BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose" / "compose.yaml"
    )  # fmt: skip


@pytest.mark.parametrize("unit", ["elastic-launch.service", "etcd.service"])
def test_systemd_takes_a_unit(unit: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here (Debian: systemd)")
    text = (DEPLOY / "systemd" / unit).read_text()
    for program in ("/opt/elastic-launch/bin/elastic-launch", "etcd"):
        text = text.replace(f"ExecStart={program} ", f"ExecStart={sys.executable} ")  # It looks for the program.
    (tmp_path / unit).write_text(text)
    accepted("systemd-analyze", "verify", "--man=no", tmp_path / unit)


@pytest.mark.parametrize("folder", [*(f"overlays/{name}" for name in kustomize.OVERLAYS), "parameter-server"])
def test_the_renderer_of_these_tests_makes_what_kubectl_makes(folder: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here (Debian's is too old for components)")
    made = subprocess.run(["kubectl", "kustomize", KUBERNETES / folder], capture_output=True, check=True).stdout
    real = {kustomize.identity(thing): thing for thing in yaml.safe_load_all(made)}
    assert {kustomize.identity(thing): thing for thing in kustomize.rendered(KUBERNETES / folder)} == real
