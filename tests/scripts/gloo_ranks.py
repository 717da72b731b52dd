"""Real processes that form a gloo world: one call runs a function of a module as every rank of it."""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist

from tests.scripts.torch_forkserver import Forked

LIMIT_S = 90.0
"""How long the ranks of a world may be apart at its end, on a slow machine."""


def start(module: str, name: str, rank: int, world: int, meeting: str, given: dict[str, Any]) -> Forked:
    """One rank of a world: it calls `name(rank, world, **given)` and prints what comes back as its last line."""
    words = ("tests.scripts.gloo_ranks", module, name, str(rank), str(world), meeting, json.dumps(given))
    return Forked(words, os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}, errors=2)


def run(module: str, name: str, given: list[dict[str, Any]]) -> list[Any]:
    """Call `name(rank, world, **given[rank])` on every rank of a new world; what each returns.

    Arguments and answers are JSON. Fails if a rank fails; its traceback is on the test's stderr.
    """
    world = len(given)
    with tempfile.TemporaryDirectory() as folder:
        children = [start(module, name, rank, world, f"{folder}/store", one) for rank, one in enumerate(given)]
        try:
            said = [child.output(LIMIT_S) for child in children]
        finally:
            for child in children:
                child.kill()
    assert [child.returncode for child in children] == [0] * world
    return [json.loads(one.splitlines()[-1]) for one in said]


def main(module: str, name: str, rank: str, world: str, meeting: str, given: str) -> None:
    """Be one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=int(rank), world_size=int(world))
    answer = getattr(importlib.import_module(module), name)(int(rank), int(world), **json.loads(given))
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(answer), flush=True)
    os._exit(0)  # Threads of gloo may outlast the group by a moment, and then python's own end is an abort.


if __name__ == "__main__":
    main(*sys.argv[1:])
