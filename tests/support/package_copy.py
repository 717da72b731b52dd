"""A copy of both packages in which one line is another: the program as another version of it would be."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def changed_copy(folder: Path, module: str, line: str, instead: str) -> dict[str, str]:
    """Copy the packages into `folder`, replace the line of a module, and return the environment that finds them."""
    for package in ("elastic", "launcher"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / module
    text = path.read_text()
    assert f"\n{line}\n" in text
    path.write_text(text.replace(f"\n{line}\n", f"\n{instead}\n"))
    return {"PYTHONPATH": str(folder)}
