"""A torch that says what `elastic-ctl doctor` asks, for what is no matter of torch: to import it takes seconds."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]

TEXT = """
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


def path(folder: Path) -> str:
    """PYTHONPATH with this torch before the real one."""
    found = folder / "light"
    found.mkdir(exist_ok=True)
    (found / "torch.py").write_text(TEXT)
    return os.pathsep.join([str(found), str(ROOT)])
