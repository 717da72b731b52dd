"""Versions of Python, torch, CUDA and NCCL on this machine. Nothing is imported: torch takes seconds."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import platform
import re
import sys
from pathlib import Path

NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
"""The packages that bring NCCL for torch's wheels. In other builds of torch the version of NCCL is not known."""
CUDA_LINE = re.compile(r"^cuda\b[^=\n]*=\s*(['\"])(?P<version>[^'\"\n]+)\1", re.MULTILINE)
"""The line of torch's `version.py` that names CUDA; builds without it have None there."""


def installed() -> dict[str, str]:
    """Return the versions of Python, torch and NCCL of this interpreter; "" for those that are not installed."""
    nccl = next((found for name in NCCL_PACKAGES if (found := _wheel(name))), "")
    return {"python": platform.python_version(), "torch": _wheel("torch") or package_version("torch"), "nccl": nccl}


def cuda_of_torch() -> str:
    """Return the version of CUDA that torch was built for, from torch's `version.py`; "" without torch or CUDA."""
    spec = importlib.machinery.PathFinder.find_spec("torch")
    for place in (spec.submodule_search_locations if spec is not None else None) or ():
        with contextlib.suppress(OSError):
            if found := CUDA_LINE.search(Path(place, "version.py").read_text(encoding="utf-8", errors="replace")):
                return found["version"]
    return ""


def _wheel(name: str) -> str:
    """Return the version of a package that was installed from a wheel; "" if there is none.

    `importlib.metadata` finds the same, but imports the email parser, which reads all metadata of torch, at each start
    of a node.
    """
    for place in sys.path:
        for metadata_file in Path(place or os.curdir).glob(f"{name.replace('-', '_')}-*.dist-info/METADATA"):
            with contextlib.suppress(OSError), metadata_file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line.startswith("Version:"):
                        return line.removeprefix("Version:").strip()
    return ""


def package_version(name: str) -> str:
    """Return the version of a package however it was installed; "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version  # Slow to import, and rarely needed.

    try:
        return version(name)
    except PackageNotFoundError:
        return ""
