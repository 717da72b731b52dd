"""The packages of the product and their imports, read from the source, for docs/development/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[2]
ROOTS: Final = ("launcher", "elastic")


def packages() -> list[str]:
    """Every package below the two roots, parents first."""
    folders = (path.parent for root in ROOTS for path in sorted((ROOT / root).rglob("__init__.py")))
    return [".".join(folder.relative_to(ROOT).parts) for folder in folders if folder.name not in ROOTS]


def purpose(package: str) -> str:
    """The first sentence of a package's docstring, without its period."""
    source = ROOT / package.replace(".", "/") / "__init__.py"
    text = " ".join((ast.get_docstring(ast.parse(source.read_text())) or "").split())
    return text.partition(". ")[0].removesuffix(".")


def table() -> list[tuple[str, str]]:
    """One row per package: its folder, and what it is for."""
    return [(f"`{package.replace('.', '/')}`", purpose(package)) for package in packages()]


def arrows() -> set[tuple[str, str]]:
    """Which package directly below a root imports which."""
    top = [package for package in packages() if package.count(".") == 1]
    graph = grimp.build_graph(*ROOTS)
    for package in top:
        graph.squash_module(package)
    return {
        (one, other)
        for one in top
        for other in graph.find_modules_directly_imported_by(one)
        if other in top and other != one
    }


def needed(arrows: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from longer ways: the figure stays readable, and says the same."""

    def reached(start: str, without: tuple[str, str]) -> set[str]:
        seen, open_ = set[str](), [start]
        while open_:
            here = open_.pop()
            ahead = {end for begin, end in arrows if begin == here and (begin, end) != without} - seen
            seen |= ahead
            open_ += ahead
        return seen

    return sorted(arrow for arrow in arrows if arrow[1] not in reached(arrow[0], arrow))


def figure() -> str:
    """A figure in Mermaid. An arrow leads from a package to one that it imports."""
    shown = needed(arrows())
    names = sorted({name for arrow in shown for name in arrow})
    boxes: list[str] = []
    for root in ROOTS:
        boxes += [f"    subgraph {root}", *(f"        {name}" for name in names if name.startswith(root)), "    end"]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *(f"    {one} --> {other}" for one, other in shown), "```"])
