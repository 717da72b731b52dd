"""`import torch` in a child: what it finds, what the linker says, and how long it may take."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.doctor import torch_import
from launcher.doctor.torch_import import torch_checks
from launcher.system.checks import CheckLevel


def test_a_real_import_that_the_linker_refuses_is_shown_as_the_linker_said_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import ctypes\nctypes.CDLL('libssl.so.99')\n")
    (check,) = torch_checks({"PYTHONPATH": str(tmp_path), "PATH": ""}, 0)
    assert check.level is CheckLevel.FAIL
    assert "libssl.so.99: cannot open shared object file" in check.text
    assert "apt-get install libssl3" in check.hint


def test_an_import_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_import, "LIMIT_S", 0.5)
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(1000)\n")
    (check,) = torch_checks({"PYTHONPATH": str(tmp_path)}, 0)
    assert (check.level, check.name) == (CheckLevel.FAIL, "torch")


def test_the_torch_that_is_here_imports_and_has_gloo() -> None:
    checks = torch_checks(os.environ, 0)
    assert checks[0].level is CheckLevel.OK
    assert checks[0].text.startswith("2.")
    assert checks[1].text.startswith("gloo")
