"""Workers on real cards: which of them each one computes on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cards import installed

LIMIT_S = 110.0

SCRIPT = """
import os, pathlib, sys
import torch
import torch.distributed as dist

if sys.argv[2] == "local_rank":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
one = torch.ones(1, device="cuda")
dist.all_reduce(one)
assert one.item() == dist.get_world_size()
uuid = torch.cuda.get_device_properties(one.device).uuid
pathlib.Path(sys.argv[1], os.environ["LOCAL_RANK"]).write_text(f"GPU-{uuid}")
dist.destroy_process_group()
"""
"""A worker that says on which card it has computed, with all the others."""


def cards(count: int) -> list[tuple[str, str]]:
    """Number and UUID of so many cards, the last ones first; the test is skipped where there are fewer."""
    here = installed(os.environ)
    if len(here.cards) < count:
        pytest.skip(f"needs {count} CUDA cards, this machine has {len(here.cards)} ({here.trouble})")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this torch cannot use CUDA")
    return [(card.number, card.uuid) for card in reversed(here.cards)][:count]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("flags", "script"), [((), "local_rank"), (("--one_card_per_worker",), "just_cuda")])
def test_each_worker_computes_on_its_own_of_the_named_cards(
    tmp_path: Path, count: int, flags: tuple[str, ...], script: str
) -> None:
    named = cards(count)
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("CUDA_", "ELASTIC_"))}
    numbers = ",".join(number for number, _ in named)
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "launcher", "--gpus", numbers, *flags, "train.py", str(tmp_path), script],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert [(tmp_path / str(local)).read_text() for local in range(count)] == [uuid for _, uuid in named]
    log = (tmp_path / "log" / "launcher.log").read_text()
    assert re.search(r"workers of generation 1 run: .* \(warm\)$", log, re.MULTILINE), log  # Forked before CUDA began.
