"""The direction of imports, and what is kept out of pure modules and of the agent."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PURE = (
    "elastic.core.agent.apply_event",
    "elastic.core.agent.reconcile",
    "elastic.core.agent.effects",
    "elastic.core.agent.events",
    "elastic.core.agent.state",
    "elastic.core.agent.guards",
    "elastic.core.agent.inbound_links",
    "elastic.core.agent.links",
    "elastic.core.agent.table",
    "launcher.wire.inspect",
    "elastic.core.restart_policy",
    "elastic.core.generation_codec",
    "elastic.core.host_exclusion",
    "launcher.history.training_curve",
    "elastic.core.membership.decision",
    "elastic.environment",
    "elastic.errors",
    "elastic.core.membership.next_generation",
    "elastic.core.membership.gate",
    "launcher.history.goodput_meter",
    "launcher.history.goodput",
    "elastic.core.operator_stop",
    "launcher.health.hang_detector",
    "launcher.history.events",
    "elastic.core.host_order",
    "elastic.core.admission",
    "elastic.core.keys",
    "elastic.script.flags",
    "launcher.wire.links",
    "elastic.core.decide",
    "elastic.core.model",
    "elastic.core.text",
    "elastic.core.membership.memory",
    "launcher.history.downtime",
    "launcher.wire.reachability",
    "elastic.core.transactions",
    "elastic.core.membership.situation",
    "launcher.history.recovery",
    "elastic.core.ps.restart",
    "elastic.core.ps.revision",
    "elastic.core.run_deadline",
    "elastic.core.ps.cluster_spec",
    "elastic.core.ps.placement",
    "launcher.history.ps_recorder",
    "elastic.core.ps.text",
    "launcher.history.failure_signals",
    "elastic.core.partition",
    "launcher.health.partition_detector",
    "launcher.history.job_report",
    "launcher.history.recorder",
    "elastic._decode",
    "elastic.core.versions",
    "elastic.store.protocol",
    "elastic.testing.environment",
    "elastic.testing.schedule",
    "launcher.net.endpoints",
    "launcher.workers.environment",
    "launcher.workers.exits",
    "launcher.net.interfaces",
    "launcher.net.proxies",
    "launcher.workers.ps_environment",
    "launcher.text.failure_report",
    "launcher.config.ps_layout",
    "launcher.workers.reports.tracebacks",
    "launcher.workers.reports.progress_text",
    "launcher.workers.reports.step_rate",
    "launcher.k8s.objects",
    "launcher.k8s.sizing",
    "launcher.spot.aws",
    "launcher.spot.azure",
    "launcher.spot.endpoint",
    "launcher.spot.protocol",
    "launcher.spot.gcp",
    "launcher.metrics.health",
    "launcher.metrics.catalog",
    "launcher.logs.dedup",
    "launcher.logs.json_format",
    "launcher.terminal.screen",
    "launcher.terminal.content",
    "launcher.torchrun.rounds",
    "launcher.torchrun.messages",
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


def source_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


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
    assert not {module.partition(".")[0] for module in imported(source_of(name))} & IMPURE


@pytest.mark.parametrize("name", [name for name in PURE if name.startswith("elastic.")])
def test_a_pure_module_of_the_library_imports_only_pure_ones_of_ours(name: str) -> None:
    ours = {module for module in imported(source_of(name)) if module.startswith("elastic.")}
    assert {module for module in ours if source_of(module).exists()} <= set(PURE)


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


@pytest.mark.parametrize("module", ["launcher.agent.agent", "launcher.local.supervisor", "launcher.nursery.supervisor"])
def test_no_process_of_the_launcher_loads_torch(module: str) -> None:
    assert not loaded_after(f"import {module}") & set(LATE_FOR_THE_AGENT)


def test_an_agent_without_monitors_loads_nothing_of_what_answers_them() -> None:
    assert not loaded_after("import launcher.agent.run") & {"aiohttp", "prometheus_client"}
