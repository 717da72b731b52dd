"""Tests that need frameworks of an environment of their own (make scripts)."""

from __future__ import annotations

import importlib.util

import pytest


def needs(*packages: str) -> list[pytest.MarkDecorator]:
    """The marks of a test that runs in .venv-scripts/bin/python -m pytest -m scripts, and skips elsewhere."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    reason = f"{', '.join(missing)} not installed; make scripts does it"
    return [pytest.mark.scripts, pytest.mark.skipif(bool(missing), reason=reason)]
