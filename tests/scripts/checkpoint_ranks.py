"""Worlds of a few ranks over gloo, each a process of its own, that run one function of a test."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
from pathlib import Path

from tests.scripts.torch_forkserver import Forked

LIMIT_S = 90.0
"""How long the ranks of a world may be apart at its end, on a slow machine."""

PROLOGUE = """
import os, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # Before torch 2.13 its checkpoints used that.
rank, world, folder, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
import torch
import torch.distributed as dist
from pathlib import Path
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(meeting, world), rank=rank, world_size=world)
own = dist.new_group(backend="gloo")
from elastic.errors import *
from elastic.train.checkpoint import Checkpoints, manifest
from elastic.train.checkpoint.async_saver import AsyncSaver
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
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(meeting.with_suffix(f".{rank}").open("w+")) for rank in range(world)]
        ranks = [
            Forked(
                ("tests.scripts.checkpoint_ranks", str(script), str(rank), str(world), str(folder), str(meeting)),
                clean,
                errors=files[rank].fileno(),
            )
            for rank in range(world)
        ]
        try:
            said = [process.output(LIMIT_S) for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        for rank, (process, file) in enumerate(zip(ranks, files, strict=True)):
            expected = -signal.SIGKILL if rank == killed else 0
            file.seek(0)
            assert process.returncode == expected, f"rank {rank} ended with {process.returncode}:\n{file.read()}"
    return said


if __name__ == "__main__":
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
