"""What is used of torch's internals, with each other version of torch that `make torch` has installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENVIRONMENTS = sorted(ROOT.glob(".venv-torch-*"))
TESTS = ("tests/unit/train/data", "tests/unit/train/statedict", "tests/unit/train/comm", "tests/unit/train/memory")


@pytest.mark.skipif(not ENVIRONMENTS, reason="no other torch is installed: make torch TORCH=2.14.1")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda path: path.name.removeprefix(".venv-torch-"))
def test_order_counting_and_state_trees_hold_with_another_torch(environment: Path) -> None:
    ran = subprocess.run(
        [environment / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
