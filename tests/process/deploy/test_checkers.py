"""The files of deploy/ under the checkers of their own kinds. Where one is not installed, its test skips."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support import kustomize
from tests.support.deploy_files import cloud_files
from tests.support.kustomize import KUBERNETES, ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
EXPOSURE_MAX: Final = {"elastic-launch.service": 44, "cloud": 44, "etcd.service": 32}
"""In tenths, as systemd-analyze counts it: 0 is closed, 100 is open. What Debian 12 says of the units."""
each_unit = pytest.mark.parametrize("unit", EXPOSURE_MAX)
SCRIPTS = sorted(path for path in DEPLOY.rglob("*") if path.suffix in (".sh", ".sbatch"))


def accepted(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_a_script(script: Path) -> None:
    accepted(BIN / "shellcheck", "--shell=bash", script)


def test_shellcheck_finds_nothing_in_what_cloud_init_writes_on_a_machine(tmp_path: Path) -> None:
    (text,) = [text for path, text in cloud_files("aws", tmp_path).items() if path.endswith(".sh")]
    (script := tmp_path / "setup.sh").write_text(text)
    accepted(BIN / "shellcheck", "--shell=bash", script)


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    accepted(BIN / "hadolint", DEPLOY / "Dockerfile")


def test_the_compose_file_is_as_the_specification_of_compose_wants_it() -> None:
    accepted(
        BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose" / "compose.yaml"
    )  # fmt: skip


def written(unit: str, folder: Path) -> Path:
    """A unit whose program is here, because systemd looks for it; `cloud` is the one that cloud-init writes."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here (Debian: systemd)")
    if unit == "cloud":
        system, unit = "/etc/systemd/system/", "elastic-launch.service"
        texts = {
            path.removeprefix(system): text
            for path, text in cloud_files("aws", folder).items()
            if path.startswith(system)
        }
        assert texts.keys() == {unit, f"{unit}.d/cloud.conf"}
    else:
        texts = {unit: (DEPLOY / "systemd" / unit).read_text()}
    for path, text in texts.items():
        (made := folder / "units" / path).parent.mkdir(parents=True, exist_ok=True)
        made.write_text(re.sub(r"^ExecStart=[^ \n]+ ", f"ExecStart={sys.executable} ", text, flags=re.MULTILINE))
    return folder / "units" / unit


@each_unit
def test_systemd_takes_a_unit(unit: str, tmp_path: Path) -> None:
    accepted("systemd-analyze", "verify", "--man=no", written(unit, tmp_path))


@each_unit
def test_systemd_rates_the_exposure_of_a_unit_as_no_more_than_it_was(unit: str, tmp_path: Path) -> None:
    options = ("--offline=true", f"--threshold={EXPOSURE_MAX[unit]}", "--no-pager")
    accepted("systemd-analyze", "security", *options, written(unit, tmp_path))


@pytest.mark.parametrize("folder", kustomize.FOLDERS)
def test_the_renderer_of_these_tests_makes_what_kubectl_makes(folder: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl here (Debian's is too old for components)")
    made = subprocess.run(["kubectl", "kustomize", KUBERNETES / folder], capture_output=True, check=True).stdout
    real = {kustomize.identity(thing): thing for thing in yaml.safe_load_all(made)}
    assert {kustomize.identity(thing): thing for thing in kustomize.rendered(KUBERNETES / folder)} == real
