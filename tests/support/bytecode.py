"""The bytecode of our packages lies ready before processes are started from them.

Where python is told to write none (PYTHONDONTWRITEBYTECODE, as in many containers) each agent, nursery and worker would
compile all that it imports from a checkout, for a quarter of a second of processor time. An installed package has its
bytecode from the installer, and so has the torchrun that ours is measured against.
"""

from __future__ import annotations

import compileall
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("elastic", "launcher")


def write() -> None:
    """Compile what has changed since the last time; a checkout that cannot be written to is used as it is."""
    for name in PACKAGES:
        compileall.compile_dir(ROOT / name, quiet=2)
