"""The versions of what runs on this node, for the other nodes to compare. Nothing is imported: torch takes seconds."""

from __future__ import annotations

import hashlib
import importlib.machinery
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher import __version__
from launcher.config.config import Config
from launcher.system.package_versions import installed

DIGEST_CHARACTERS = 12
DIGEST_BYTES_MAX = 64 << 20
"""A larger file is not a script, and reading it would delay the start."""
TEXT_MAX = 100
"""Maximum characters of one version in the store's documents."""


def own_versions(config: Config) -> Mapping[str, str]:
    """Return the versions of this node and its script.

    For an executable these are only the versions of the launcher and of the script: it may run another Python than
    this process, or none.
    """
    found = installed() if config.python else {}
    found = {**found, "launcher": __version__, "script": script_digest(config)}
    return {name: text[:TEXT_MAX] for name, text in found.items() if text}


def script_digest(config: Config) -> str:
    """Return the first digits of the SHA-256 of the script's file; "" if it cannot be read."""
    path = _module_file(config.script) if config.module else Path(config.script)
    if path is None:
        return ""
    try:
        if not path.is_file() or path.stat().st_size > DIGEST_BYTES_MAX:
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARACTERS]
    except (OSError, ValueError):  # It cannot be read; a worker will report that.
        return ""


def _module_file(name: str) -> Path | None:
    """Return the file that `python -m name` runs, None if there is no plain file. Nothing is imported."""
    places: list[str] | None = [os.getcwd(), *sys.path]
    spec = None
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:length]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    if spec is not None and spec.submodule_search_locations:
        spec = importlib.machinery.PathFinder.find_spec(f"{name}.__main__", list(spec.submodule_search_locations))
    return Path(spec.origin) if spec is not None and spec.origin else None
