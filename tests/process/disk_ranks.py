"""Worlds of a few ranks over gloo, each a process of its own, that run one function of a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PROLOGUE = """
import os, sys, warnings
warnings.simplefilter("error")
rank, world, folder, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
import torch
import torch.distributed as dist
from pathlib import Path
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(meeting, world), rank=rank, world_size=world)
own = dist.new_group(backend="gloo")
from elastic.errors import *
from elastic.train import layout
from elastic.train.checkpoint import Checkpoints
from elastic.train.saver import Saver
"""
"""What the function's text finds: rank, world, folder (text), own (a gloo group), and the names imported here."""

EPILOGUE = """
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # Threads of gloo may outlast the group by a moment, and then python's own end is an abort.
"""

_NO_LAUNCHER = ("ELASTIC_", "RANK", "LOCAL_", "WORLD_SIZE", "TORCHELASTIC_")


def run(world: int, code: str, folder: Path, *, killed: int | None = None) -> list[str]:
    """Run `code` in a world of `world` ranks and return what each printed.

    Every rank must end with 0; the rank `killed` by SIGKILL.
    """
    meeting = folder.parent / f"meeting-{folder.name}-{len(list(folder.parent.glob('meeting-*')))}"
    script = meeting.with_suffix(".py")
    script.write_text(PROLOGUE + code + EPILOGUE)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(_NO_LAUNCHER)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world), str(folder), str(meeting)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=90) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    for rank, (process, (_, errors)) in enumerate(zip(ranks, said, strict=True)):
        expected = -signal.SIGKILL if rank == killed else 0
        assert process.returncode == expected, f"rank {rank} ended with {process.returncode}:\n{errors}"
    return [output for output, _ in said]
