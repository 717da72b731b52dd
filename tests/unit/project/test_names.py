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
TORCH_INTERNALS: Final = "elastic/train/torch_internals.py"
"""The one module that may use private names of torch."""
PYTHONS_OWN: Final = frozenset({"_exit", "_getframe", "_replace", "_run_exitfuncs", "_shutdown"})
"""Private names of Python's library: of os, sys, named tuples, atexit and threading."""
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


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def own_names() -> set[str]:
    """Every name that the product itself gives to something."""
    names = set(PYTHONS_OWN)
    for _, tree in sources():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
    return names


def private_of_torch(tree: ast.Module, own: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name) and name not in own:
                yield ast.unparse(node)
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] == "torch":
                if any(map(is_private, (*module.split("."), *(alias.name for alias in names)))):
                    yield ast.unparse(node)


def test_private_names_of_torch_are_used_in_one_module() -> None:
    own = own_names()
    users = {file: set(private_of_torch(tree, own)) for file, tree in sources() if file.startswith("elastic/train")}
    assert {file for file, names in users.items() if names} == {TORCH_INTERNALS}


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
