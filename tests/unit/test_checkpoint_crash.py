"""A process that is killed at any step of a save leaves whole checkpoints and nothing else that is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KILLED_AT_EVERY_STEP = """
import os, signal, sys
import torch
from elastic.train import fence
from elastic.train.checkpoint import Checkpoints

torch.set_num_threads(1)
folder, fenced = sys.argv[1], sys.argv[2] == "fenced"
if fenced:
    fence.claim(__import__("pathlib").Path(folder), "abc/7")

def saver():
    return Checkpoints(folder, generation=7, mark="abc/7" if fenced else "", keep=2)

for step in (0, 1):
    saver().save(step, model={"w": torch.full((8,), float(step))})
newest, kills, step = 1, 0, 1
while True:
    step += 1
    child = os.fork()
    if child == 0:
        left = kills
        def hook(event, arguments):
            global left
            if event.split(".")[0] in ("open", "os", "shutil", "tempfile"):
                left -= 1
                if left == -1:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        saver().save(step, model={"w": torch.full((8,), float(step))})
        os._exit(0)
    _, status = os.waitpid(child, 0)
    loaded = saver().load()
    assert loaded is not None and loaded.step in (newest, step), (kills, loaded)
    assert loaded["model"]["w"][0] == loaded.step
    newest = loaded.step
    if status == 0:
        assert newest == step
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
print(kills)
"""


def kills_survived(folder: Path, how: str) -> int:
    command = [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(folder), how]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_save_killed_before_any_of_its_system_calls_leaves_the_old_or_the_new_checkpoint(tmp_path: Path) -> None:
    assert kills_survived(tmp_path, "unfenced") > 10


def test_the_same_holds_under_a_fence(tmp_path: Path) -> None:
    assert kills_survived(tmp_path, "fenced") > 10
