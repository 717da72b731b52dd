"""Torches whose import takes no seconds, for what is no matter of torch."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]

FOR_THE_DOCTOR = """
import sys
import types

__version__ = "2.0.0"
version = types.SimpleNamespace(cuda=None)
cuda = types.SimpleNamespace(is_available=lambda: False)
distributed = types.ModuleType("torch.distributed")
distributed.is_available = distributed.is_gloo_available = lambda: True
distributed.is_nccl_available = lambda: False
sys.modules["torch.distributed"] = distributed
"""
"""It says of itself what `elastic-ctl doctor` asks."""

FOR_A_NURSERY = """
class default_generator:
    def seed(): ...
    def get_state():
        return memoryview(b"")


def __getattr__(name):
    raise ImportError(f"no torch.{name}")
"""
"""A nursery goes on without what a version of torch does not have; the worker that it forks makes a seed of its own."""


def path(folder: Path) -> str:
    """PYTHONPATH for a doctor, with such a torch before the real one."""
    found = folder / "light"
    found.mkdir(exist_ok=True)
    (found / "torch.py").write_text(FOR_THE_DOCTOR)
    return os.pathsep.join([str(found), str(ROOT)])


def bare(folder: Path) -> Path:
    """The folder of a script, with a torch for the nursery beside the script."""
    (folder / "torch.py").write_text(FOR_A_NURSERY)
    return folder
