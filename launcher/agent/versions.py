"""What runs on this node, by name, for the other nodes to compare. Nothing of it is imported: torch costs seconds."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from launcher import __version__
from launcher.config.config import Config

NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
"""The packages that torch's wheels bring NCCL in. A torch that was built otherwise has it inside, and tells nothing."""
DIGEST_CHARACTERS = 12
DIGEST_BYTES_MAX = 64 << 20
"""A larger file is no script; reading it would delay the start."""
TEXT_MAX = 100
"""Characters of one version, as the store's documents have it."""


def own_versions(config: Config) -> Mapping[str, str]:
    """The versions of this node and its script.

    An executable brings a Python of its own, or none, so that those of this process say nothing about it: then there
    are only the launcher's version and the script.
    """
    found = installed() if config.python else {}
    found = {**found, "launcher": __version__, "script": script_digest(config)}
    return {name: text[:TEXT_MAX] for name, text in found.items() if text}


def installed() -> dict[str, str]:
    """Python, torch and NCCL of this interpreter; "" for what is not installed."""
    nccl = next((found for name in NCCL_PACKAGES if (found := _wheel(name))), "")
    return {"python": platform.python_version(), "torch": _wheel("torch") or package_version("torch"), "nccl": nccl}


def script_digest(config: Config) -> str:
    """The first digits of the SHA-256 of the script's file; "" if there is no such file, or not one to read."""
    path = _module_file(config.script) if config.module else Path(config.script)
    if path is None:
        return ""
    try:
        if not path.is_file() or path.stat().st_size > DIGEST_BYTES_MAX:
            return ""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARACTERS]
    except (OSError, ValueError):  # It cannot be read; a worker says so.
        return ""


def _wheel(name: str) -> str:
    """The version of a package that an installer has unpacked from a wheel; "" if there is none.

    `importlib.metadata` finds the same, but loads the parser of emails and has it read all that torch says of itself,
    at each start of a node.
    """
    for place in sys.path:
        for metadata_file in Path(place or os.curdir).glob(f"{name.replace('-', '_')}-*.dist-info/METADATA"):
            with contextlib.suppress(OSError), metadata_file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line.startswith("Version:"):
                        return line.removeprefix("Version:").strip()
    return ""


def package_version(name: str) -> str:
    """The version of a package however it was installed; "" if it is not."""
    from importlib.metadata import PackageNotFoundError, version  # It loads half of email, and is rarely needed.

    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _module_file(name: str) -> Path | None:
    """The file that `python -m name` runs, None if it is not in a plain place. Nothing is imported."""
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
