"""A process that is killed at any step of a save leaves whole checkpoints and nothing else that is read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

KILLED_AT_EVERY_STEP = """
import os, signal, sys
import torch
from elastic.train import fence, together  # Loaded before the first fork.
from elastic.train.checkpoint import Checkpoints
from elastic.train.saver import Saver

torch.set_num_threads(1)
folder, fenced, way = sys.argv[1], sys.argv[2] == "fenced", sys.argv[3]
if fenced:
    fence.claim(__import__("pathlib").Path(folder), "abc/7")

def checkpoints():
    return Checkpoints(folder, generation=7, mark="abc/7" if fenced else "", keep=2)

def save(step):
    weights = {"w": torch.full((8,), float(step))}
    if way == "plain":
        checkpoints().save(step, model=weights)
        return
    saver = Saver(checkpoints())
    saver.start(step, *([{"model": weights}] if way == "background" else [{"step": step}, {"model": weights}]))
    saver.wait()

def saved():
    loaded = checkpoints().load()
    assert loaded is not None
    if way != "sharded":
        return loaded.step, loaded["model"]["w"]
    newest = checkpoints().candidates()[0]
    assert newest.step == loaded.step == loaded["step"]
    weights = torch.zeros(8)
    checkpoints().read_sharded(newest, "model", lambda _: {"w": weights})
    return newest.step, weights

for step in (0, 1):
    save(step)
newest, kills, step = 1, 0, 1
while True:
    step += 1
    child = os.fork()
    if child == 0:
        left = kills
        def count():
            global left
            left -= 1
            if left == -1:
                os.kill(os.getpid(), signal.SIGKILL)
        def hook(event, arguments):
            if event.split(".")[0] in ("open", "os", "shutil", "tempfile"):
                count()
        synced = os.fsync
        def fsync(handle):  # It has no audit event; what was written before it may be there in part.
            count()
            synced(handle)
        os.fsync = fsync
        sys.addaudithook(hook)
        save(step)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found, weights = saved()
    assert found in (newest, step), (kills, found)
    assert torch.equal(weights, torch.full((8,), float(found))), (kills, found, weights)
    newest = found
    if status == 0:
        assert newest == step
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    kills += 1
print(kills)
"""


def kills_survived(folder: Path, how: str, way: str) -> int:
    command = [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(folder), how, way]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("way", ["plain", "background", "sharded"])
def test_a_save_killed_before_any_of_its_system_calls_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, way: str
) -> None:
    assert kills_survived(tmp_path, "unfenced", way) > 10


@pytest.mark.parametrize("way", ["plain", "sharded"])
def test_the_same_holds_under_a_fence(tmp_path: Path, way: str) -> None:
    assert kills_survived(tmp_path, "fenced", way) > 10
