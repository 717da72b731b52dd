"""Stand-ins for nvidia-smi, and what it lists."""

from __future__ import annotations

import os
from pathlib import Path

from launcher.config.devices import Gpu

VISIBLE = "0,1,2,3"
UUID_A, UUID_B, UUID_C = "GPU-5d5ba0d6-d33d-2b2c", "GPU-5d77e2ab-0000-1111", "GPU-c0ffee00-2222-3333"
MIG = "MIG-c6d4f1ef-42e4-5de3"
OTHER_MIG = "MIG-cba663e8-9bed-5b25"
LISTED = f"""\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: {UUID_A})
GPU 1: NVIDIA A100 (odd) name (UUID: {UUID_B})
  MIG 1g.5gb      Device  0: (UUID: {MIG})
  MIG 1g.5gb      Device  1: (UUID: {OTHER_MIG})
GPU 2: NVIDIA A100-SXM4-40GB (UUID: {UUID_C})
GPU 3: Orin (nvgpu)
"""
HERE = (Gpu("0", UUID_A), Gpu("1", UUID_B, (MIG, OTHER_MIG)), Gpu("2", UUID_C), Gpu("3", ""))


def smi(folder: Path, text: str, code: int = 0) -> dict[str, str]:
    """An environment in which nvidia-smi says this."""
    (folder / "listed").write_text(text)
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$*" = -L ] || exit 7\n/bin/cat {folder / "listed"}\nexit {code}\n')
    program.chmod(0o755)
    return {"PATH": str(folder)}


def four_cards(folder: Path) -> dict[str, str]:
    """What makes a machine with four cards of this one."""
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    lines = "\n".join(f"echo 'GPU {number}: NVIDIA X (UUID: GPU-{number}aaa-bbb)'" for number in range(4))
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": VISIBLE}
