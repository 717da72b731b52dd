"""Real processes that form a gloo world: one call runs a function of a module as every rank of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

_CHILD = """
import importlib, json, os, sys, torch
import torch.distributed as dist
module, name, rank, world, meeting, given = sys.argv[1:7]
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(meeting, int(world)), rank=int(rank), world_size=int(world))
answer = getattr(importlib.import_module(module), name)(int(rank), int(world), **json.loads(given))
dist.barrier()
dist.destroy_process_group()
print(json.dumps(answer), flush=True)
os._exit(0)  # Threads of gloo may outlast the group by a moment, and then python's own end is an abort.
"""


def start(module: str, name: str, rank: int, world: int, meeting: str, given: dict[str, Any]) -> subprocess.Popen[str]:
    """One rank of a world: it calls `name(rank, world, **given)` and prints what comes back as its last line."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, module, name, str(rank), str(world), meeting, json.dumps(given)],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(module: str, name: str, given: list[dict[str, Any]]) -> list[Any]:
    """Call `name(rank, world, **given[rank])` on every rank of a new world; what each returns.

    Arguments and answers are JSON. Fails if a rank fails; its traceback is on the test's stderr.
    """
    world = len(given)
    with tempfile.TemporaryDirectory() as folder:
        children = [start(module, name, rank, world, f"{folder}/store", one) for rank, one in enumerate(given)]
        try:
            said = [child.communicate(timeout=90)[0] for child in children]
        finally:
            for child in children:
                child.kill()
                child.communicate()
    assert [child.returncode for child in children] == [0] * world
    return [json.loads(one.splitlines()[-1]) for one in said]
