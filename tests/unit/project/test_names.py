"""Names in the product: a class name means one thing, and variables of long functions say what they hold."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PRODUCT: Final = ("elastic", "launcher")
DEFINED_TWICE: Final[frozenset[str]] = frozenset()
"""Class names that two modules may define, each with its reason."""
VAGUE: Final = frozenset({"one", "found", "told", "mine", "here", "kept"})
LINES_MAX: Final = 10
"""In a function with more lines than this, the place where a variable was set is out of sight."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> Iterator[tuple[str, ast.Module]]:
    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def names_set_in(function: Function) -> set[str]:
    """Every name that a function binds: parameters, variables, captures of patterns, inner functions."""
    names = set[str]()
    for node in ast.walk(function):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if node is not function:
                names.add(name)
    return names


def test_a_class_name_is_defined_in_one_module_only() -> None:
    modules = defaultdict[str, set[str]](set)
    for file, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                modules[node.name.lstrip("_")].add(file)
    assert {name: files for name, files in modules.items() if len(files) > 1 and name not in DEFINED_TWICE} == {}


def test_a_variable_of_a_long_function_says_what_it_holds() -> None:
    vague = [
        f"{file}:{node.lineno} {node.name}: {', '.join(sorted(names))}"
        for file, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, Function) and (node.end_lineno or 0) - node.lineno >= LINES_MAX
        if (names := names_set_in(node) & VAGUE)
    ]
    assert vague == []
