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

MODULES = {
    "stored": ("store",),
    "small": ("generation", "document", "probe", "advice", "events", "saved"),
    "links": ("link lines", "link listener", "link dialler"),
    "window": ("window questions", "window", "window answers"),
    "channel": ("channel of an agent", "channel of a worker"),
    "pipes": ("nursery wire", "error file", "progress file"),
    "files": ("checkpoint meta", "fence", "rollback", "dcp metadata", "memory slot"),
    "servers": ("ps wire", "ps roster"),
    "commands": ("flags", "elastic-ctl", "environment", "lists", "password file"),
    "output": ("log", "shown output", "end of a log"),
}
"""Modules, and the targets that each has."""
NAMES = tuple(name for names in MODULES.values() for name in names)


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


def load(name: str) -> Target:
    """The target of that name. Its module imports what it tests."""
    module = next(module for module, names in MODULES.items() if name in names)
    found: dict[str, Target] = {
        target.name: target for target in importlib.import_module(f"tests.fuzz.{module}").TARGETS
    }
    assert tuple(found) == MODULES[module]
    return found[name]


def scratch(name: str) -> Path:
    """A folder in memory, if there is such a place, that goes with this process."""
    made = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made
