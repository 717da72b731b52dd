"""The direction of imports, and what is kept out of pure modules and of the agent."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SHELLS_OF_THE_LIBRARY = frozenset(
    {"__init__", "channel", "channelserver", "knock", "link", "oneflow", "relaunch", "segments"}
)
"""The modules directly in `elastic` that may look at the world; every other one is of the pure core."""

PURE = (
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "elastic").glob("*.py")
        if path.stem not in SHELLS_OF_THE_LIBRARY
    ),
    "elastic/store/base.py",
    "elastic/testing/environment.py",
    "elastic/testing/schedule.py",
    *(
        f"launcher/{name}.py"
        for name in (
            "endpoints",
            "environment",
            "exits",
            "interfaces",
            "proxies",
            "psenvironment",
            "report",
            "roles",
            "tracebacks",
            "progresswords",
            "steps",
            "kube/objects",
            "kube/sizing",
            "spot/aws",
            "spot/azure",
            "spot/endpoint",
            "spot/exchange",
            "spot/gcp",
            "health",
            "metrictable",
            "collapse",
            "jsonlines",
            "live/screen",
            "live/words",
            "torchrun/rounds",
            "torchrun/words",
        )
    ),
)
"""Modules that take time and randomness as arguments."""

IMPURE = frozenset(
    {
        "asyncio",
        "grpc",
        "logging",
        "os",
        "random",
        "secrets",
        "select",
        "socket",
        "subprocess",
        "threading",
        "time",
        "uuid",
    }
)
LATE_FOR_THE_AGENT = ("torch", "numpy", "sklearn")
"""What costs seconds or memory and belongs to workers."""


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or inside a function, but not for type checks alone."""
    tree = ast.parse(path.read_text(), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", modules("elastic"), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_library_does_not_import_the_launcher(path: Path) -> None:
    assert not [name for name in imported(path) if name.partition(".")[0] in ("launcher", "tests")]


@pytest.mark.parametrize(
    "path", [*modules("launcher"), *modules("elastic")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_nothing_imports_the_tests(path: Path) -> None:
    assert not [name for name in imported(path) if name.partition(".")[0] == "tests"]


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_imports_nothing_that_looks_at_the_world(name: str) -> None:
    path = ROOT / name
    found = {module.partition(".")[0] for module in imported(path)} & IMPURE if path.exists() else set()
    assert not found


@pytest.mark.parametrize("name", [name for name in PURE if name.startswith("elastic/")])
def test_a_pure_module_of_the_library_imports_only_pure_ones_of_ours(name: str) -> None:
    path = ROOT / name
    ours = {module for module in imported(path) if module.startswith("elastic.")} if path.exists() else set()
    files = {module.replace(".", "/") + ".py" for module in ours}
    assert {file for file in files if (ROOT / file).exists()} <= set(PURE)


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
    assert not loaded_after("import elastic, elastic.errors, elastic.model, elastic.testing") & {
        "grpc",
        "torch",
        "numpy",
        "etcd3",
    }


def test_reading_the_command_line_loads_neither_grpc_nor_torch() -> None:
    assert not loaded_after("import launcher.cli, launcher.config") & {"grpc", "torch", "numpy", "etcd3"}


@pytest.mark.parametrize("module", ["agent", "local", "nursery"])
def test_no_process_of_the_launcher_loads_torch(module: str) -> None:
    if not (ROOT / "launcher" / f"{module}.py").exists():
        return  # It is checked once it is written.
    assert not loaded_after(f"import launcher.{module}") & set(LATE_FOR_THE_AGENT)


def test_an_agent_without_monitors_loads_nothing_of_what_answers_them() -> None:
    assert not loaded_after("import launcher.agentrun") & {"aiohttp", "prometheus_client"}
