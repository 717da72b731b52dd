"""Workers on real cards: which of them each one computes on, and how a killed one comes back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.devices import installed_gpus

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

RECOVERS = """
import os, signal, sys
import torch
import elastic

here = elastic.init()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).to(here.device))
state = elastic.State(model=model, optimizer=torch.optim.AdamW(model.parameters()))
state.restore()
while state.step < 20:
    if (state.step, here.generation) == (10, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(8, 64, device=here.device)).square().mean().backward()
    state.optimizer.step()
    state.commit(memory_every=1)
print(f"backend {here.backend}, {state.step} steps", flush=True)
"""
"""A worker that is killed at step 10 of its first life."""


def cards(count: int) -> list[tuple[str, str]]:
    """Number and UUID of so many cards, the last ones first; the test is skipped where there are fewer."""
    here = installed_gpus(os.environ)
    if len(here.gpus) < count:
        pytest.skip(f"needs {count} CUDA cards, this machine has {len(here.gpus)} ({here.problem})")
    import torch

    if not torch.cuda.is_available():
        pytest.skip("this torch cannot use CUDA")
    return [(gpu.number, gpu.uuid) for gpu in reversed(here.gpus)][:count]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("flags", "script"), [((), "local_rank"), (("--isolate-gpus",), "just_cuda")])
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
    # Forked before CUDA began.
    assert re.search(r"started the workers of generation 1: .* \(preloaded\)$", log, re.MULTILINE), log


@pytest.mark.gpu
def test_a_worker_that_is_killed_while_it_computes_on_a_card_is_back_with_its_steps_and_the_line_has_the_phases(
    tmp_path: Path,
) -> None:
    ((number, _),) = cards(1)
    said = recovers(tmp_path, "--gpus", number)
    assert "backend nccl, 20 steps" in said


def recovers(folder: Path, *flags: str) -> str:
    """Let a job of one node lose its worker; what it said, with the line of its recovery."""
    (folder / "train.py").write_text(RECOVERS)
    environ = {name: text for name, text in os.environ.items() if not name.startswith(("CUDA_", "ELASTIC_"))}
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "launcher", "--local-nodes", "1", "--np", "1", *flags, "train.py"],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    phases = r"back in [\d.]+ s: notice \d+ ms · .*spawn \d+ · group \d+ · restore \d+ · step \d+"
    line = re.search(rf"^.*{phases}", ran.stdout, re.MULTILINE)
    assert line, ran.stdout
    print(line[0])
    log = (folder / "log" / "launcher.log").read_text()
    assert len(re.findall(r"started the workers of generation \d: .* \(preloaded\)$", log, re.MULTILINE)) == 2, log
    return ran.stdout
