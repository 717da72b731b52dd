"""All pictures in docs/pictures: each is a function of what was measured or recorded, in docs/bench."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.bench import results
from tests.bench.pictures import architecture, phases, recovery, scale, scenarios, start, terminal
from tests.bench.pictures.style import THEMES, Colours

FOLDER: Final = results.FOLDER.parent / "pictures"
PICTURES: Final[dict[str, Callable[[Path, Colours], str]]] = {
    "architecture": architecture.draw,
    "phases": phases.draw,
    "recovery": recovery.draw,
    "scale": scale.draw,
    "scenarios": scenarios.draw,
    "start": start.draw,
}
"""Those that exist for a light page and for a dark one."""
DEMO: Final = "demo.svg"
"""A terminal is dark on every page."""


def themed(folder: Path = results.FOLDER) -> dict[str, dict[str, str]]:
    """The drawings of each picture, by theme."""
    return {
        name: {theme: draw(folder, colours) for theme, colours in THEMES.items()} for name, draw in PICTURES.items()
    }


def drawings(folder: Path = results.FOLDER) -> dict[str, str]:
    """All drawings, by file name."""
    made = {
        f"{name}-{theme}.svg": drawing for name, themes in themed(folder).items() for theme, drawing in themes.items()
    }
    return {**made, DEMO: terminal.drawing(folder)}
