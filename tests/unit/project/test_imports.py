"""What a fresh process loads. Which module may import which is checked by import-linter (`make lint`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

LATE_FOR_THE_AGENT = ("torch", "numpy", "sklearn")
"""What costs seconds or memory and belongs to workers."""


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh python has loaded after running `code`."""
    show = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{show}"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        text=True,
    )
    return set(ran.stdout.split())


def test_importing_the_library_loads_neither_grpc_nor_torch() -> None:
    assert not loaded_after("import elastic, elastic.errors, elastic.core.model, elastic.testing") & {
        "grpc",
        "torch",
        "numpy",
        "etcd3",
    }


def test_reading_the_command_line_loads_neither_grpc_nor_torch() -> None:
    assert not loaded_after("import launcher.cli, launcher.config.config") & {"grpc", "torch", "numpy", "etcd3"}


@pytest.mark.parametrize(
    "module", ["launcher.agent.agent", "launcher.local.node_supervisor", "launcher.nursery.supervisor"]
)
def test_no_process_of_the_launcher_loads_torch(module: str) -> None:
    assert not loaded_after(f"import {module}") & set(LATE_FOR_THE_AGENT)


def test_an_agent_without_monitors_loads_nothing_of_what_answers_them() -> None:
    assert not loaded_after("import launcher.agent.run") & {"aiohttp", "prometheus_client"}
