"""Where modules are: tests share code through helpers and not through each other, and packages stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.packages import ROOT

MODULES_MAX: Final = 20
"""Directly in one package, without its __init__.py: what still fits on a screen with one line for each."""
TOP_MAX: Final = {"elastic": 8, "launcher": 4}
"""At the top of the products' packages there is what users name or start, and hardly anything else."""


def is_test(module: str) -> bool:
    """Tell whether a dotted name is that of a module that pytest reads by itself."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    return module.startswith("tests.") and path.name.startswith(("test_", "conftest.")) and path.is_file()


def imported(source: str) -> Iterator[str]:
    """Yield what a module imports anywhere in it, each name also as if it were a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_of(package: Path) -> list[str]:
    return sorted(path.name for path in package.glob("*.py") if path.name != "__init__.py")


def packages(top: str) -> list[str]:
    """Return the folders of a package and of all below it that have modules, relative to the root."""
    return sorted({path.parent.relative_to(ROOT).as_posix() for path in (ROOT / top).rglob("*.py")})


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from tests.unit.project.test_layout import MODULES_MAX", True),
        ("from tests.unit.project import test_layout", True),
        ("from tests.store import conftest", True),
        ("def f():\n    import tests.unit.project.test_layout", True),
        ("from tests.support import strategies\nfrom tests.fuzz.target import test_input", False),
        ("from elastic.testing import test_run", False),
    ],
)
def test_an_import_of_a_test_module_is_found_in_each_of_its_forms(source: str, found: bool) -> None:
    assert any(map(is_test, imported(source))) == found


def test_no_module_imports_a_test_module_or_a_conftest() -> None:
    found = [
        f"{path.relative_to(ROOT)} imports {module}; what they share goes to tests/support"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for module in imported(path.read_text())
        if is_test(module)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", [*packages("elastic"), *packages("launcher")])
def test_a_package_is_small_enough_to_be_read_at_a_glance(package: str) -> None:
    assert len(modules_of(ROOT / package)) <= TOP_MAX.get(package, MODULES_MAX), "move some of them to a package"
