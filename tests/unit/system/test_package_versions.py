"""How the versions of packages are found without importing them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from launcher.system import package_versions


def test_torch_is_looked_up_and_not_imported() -> None:
    look_up = "from launcher.system import package_versions; package_versions.installed()['torch']"
    code = f"import sys; {look_up}; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_torch_has_the_version_that_python_itself_finds() -> None:
    assert package_versions.installed()["torch"] == version("torch")


def test_the_first_place_of_pythons_path_that_has_a_package_tells_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, text in (("first", "2.99.1+own"), ("second", "2.98")):
        folder = tmp_path / place / f"torch-{text}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {text}\n\nVersion: none\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "empty"), str(tmp_path / "first"), str(tmp_path / "second")])
    assert package_versions.installed()["torch"] == "2.99.1+own"
    monkeypatch.setattr(sys, "path", [str(tmp_path / "empty")])
    assert package_versions.installed()["torch"] == ""


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("cuda: Optional[str] = '12.8'", "12.8"),
        ('cuda = "13.0"', "13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'", ""),
        ("", ""),
    ],
)
def test_torchs_version_of_cuda_is_read_and_torch_is_not_imported(
    line: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('never imported')")
    (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n{line}\ngit_version = 'a'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert package_versions.cuda_of_torch() == version


def test_without_torch_there_is_no_version_of_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert package_versions.cuda_of_torch() == ""
