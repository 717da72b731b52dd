"""`elastic-ctl doctor` in an environment where another distribution installs a package named `elastic`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.doctor.packages import NAME
from tests.support import stub_torch
from tests.support.awaited_events import LIMIT_S


def packages_line(folder: Path, *search_path: str, cwd: Path) -> str:
    """Run the doctor with these folders on PYTHONPATH, then one with a torch; return the line of the check."""
    plain = {name: text for name, text in os.environ.items() if not name.startswith(("ELASTIC_", "PADDLE_"))}
    path = os.pathsep.join([*search_path, stub_torch.path(folder)])
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "launcher.ctl", "doctor"],
        cwd=cwd,
        env={**plain, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    (line,) = (line for line in ran.stdout.splitlines() if line[4:].strip().startswith(f"{NAME}: "))
    return line


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder as pip leaves it after it installed a distribution `elastic` there."""
    folder = tmp_path / "other"
    info = folder / "elastic-0.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elastic\nVersion: 0.9\n")
    (info / "top_level.txt").write_text("elastic\n")
    (info / "RECORD").write_text("".join(f"elastic-0.9.dist-info/{file},,\n" for file in ("METADATA", "RECORD")))
    return folder


def test_a_distribution_that_installs_a_package_elastic_is_named_with_the_fix(tmp_path: Path, other: Path) -> None:
    line = packages_line(tmp_path, str(other), cwd=tmp_path)
    assert f"the distribution elastic 0.9 also installs a package elastic, in {other}; " in line
    assert line.startswith("fail  ")
    assert line.endswith("pip uninstall elastic, or install elastic-launch in a separate environment")


def test_an_environment_of_ours_alone_is_fine_until_a_script_has_an_elastic_next_to_it(tmp_path: Path) -> None:
    assert packages_line(tmp_path, cwd=tmp_path).startswith("ok    ")
    (tmp_path / "elastic.py").touch()
    line = packages_line(tmp_path, cwd=tmp_path)
    assert line.startswith(f"warn  packages: {tmp_path} has another package elastic")
