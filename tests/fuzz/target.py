"""What a target is, and which there are."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOUND = Path(__file__).with_name("found")
"""Inputs that broke something once, a folder for each target: they are tried in each run."""

MODULES = ("stored", "small", "links", "channel", "pipes", "files", "servers", "commands", "output")


@dataclass(frozen=True)
class Target:
    """A reader. `run` takes any bytes and raises only if a promise is broken; `seeds` are inputs that are good."""

    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]

    @property
    def found(self) -> tuple[bytes, ...]:
        """What broke it once."""
        return tuple(path.read_bytes() for path in sorted((FOUND / self.name).glob("*")))


def targets() -> dict[str, Target]:
    """All of them, by name. Their modules import what they test."""
    found: dict[str, Target] = {}
    for module in MODULES:
        for target in importlib.import_module(f"tests.fuzz.{module}").TARGETS:
            assert target.name not in found
            found[target.name] = target
    return found


def scratch(name: str) -> Path:
    """A folder in memory, if there is such a place, that goes with this process."""
    made = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
