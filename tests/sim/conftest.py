"""`--seed N` replays one run of the simulation."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, default=None, help="replay this seed of the simulation and print it")
