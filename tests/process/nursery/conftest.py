"""What the tests of the fork server share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.succession_harness import InstalledModules


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstalledModules:
    """A folder of installed packages for the processes of a test."""
    return InstalledModules(tmp_path, monkeypatch.setenv)
