"""The parts of the source and who imports whom, read from the source: a figure for docs/architecture.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]


class Part(NamedTuple):
    """A box of the figure: its words, and the beginnings of the names of its modules; the longest that fits counts."""

    words: str
    modules: tuple[str, ...]


PARTS: Final = {
    "commands": Part(
        "elastic-ctl: launcher/operate, launcher/doctor", ("launcher.ctl.cli", "launcher.ctl", "launcher.doctor")
    ),
    "plugin": Part("plugin of torchrun: launcher/torchrun", ("launcher.torchrun",)),
    "agent": Part("agent and nursery: launcher, launcher/live, launcher/spot", ("launcher",)),
    "library": Part(
        "training library: elastic/train, elastic/testing", ("elastic.train", "elastic.testing", "elastic.oneflow")
    ),
    "store": Part("store: elastic/store", ("elastic.store",)),
    "core": Part("core, pure: elastic", ("elastic",)),
}
LEFT_OUT: Final = ("elastic.examples", "elastic.__init__")
"""Examples are imported by nobody; the other is the door of the library for scripts."""


def part(module: str) -> str | None:
    """The box in which a module lies."""
    starts = {start: name for name, one in PARTS.items() for start in one.modules}
    fits = [start for start in starts if f"{module}.".startswith(f"{start}.")]
    return starts[max(fits, key=len)] if fits else None


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def arrows() -> list[tuple[str, str]]:
    """Who imports whom."""
    found = set()
    for package in ("elastic", "launcher"):
        for path in (ROOT / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if not module.startswith(LEFT_OUT) and (here := part(module)):
                found |= {(here, there) for name in imported(path) if (there := part(name)) and there != here}
    return sorted(found)


def figure() -> str:
    """A figure in Mermaid; an arrow leads from who imports to what is imported."""
    boxes = [f'    {name}["{one.words}"]' for name, one in PARTS.items()]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *(f"    {a} --> {b}" for a, b in arrows()), "```"])
