"""A process that is killed at any step of a save leaves whole checkpoints and nothing else that is read."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(300)

KILLED_AT_EVERY_STEP = """
import gc, os, signal, sys
from pathlib import Path
import torch
from elastic.train.checkpoint import Checkpoints, collective_save, fence  # Loaded before the first fork.
from elastic.train.checkpoint.async_saver import AsyncSaver

torch.set_num_threads(1)
gc.freeze()  # Else the collector of each child touches, and so copies, all that was imported.
for words in sys.argv[2:]:
    if not (child := os.fork()):
        break
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{words}: see above")
else:
    sys.exit()

folder, (how, way) = str(Path(sys.argv[1], words)), words.split()
fenced = how == "fenced"
if fenced:
    fence.claim(Path(folder), "abc/7")

def checkpoints():
    return Checkpoints(folder, generation=7, mark="abc/7" if fenced else "", keep=2)

def save(step):
    weights = {"w": torch.full((8,), float(step))}
    if way == "plain":
        checkpoints().save(step, model=weights)
        return
    saver = AsyncSaver(checkpoints())
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
        # It has no audit event; what was written before it may be there in part. A kill takes nothing that the kernel
        # has, so that nothing needs to wait for the disk.
        os.fsync = lambda handle: count()
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
print(words, kills)
"""


WAYS = ("unfenced plain", "unfenced background", "unfenced sharded", "fenced plain", "fenced sharded")


@pytest.fixture(scope="module")
def kills_survived(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How many kills each way to save has survived. One process loads torch for all, and forks one for each."""
    command = [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(tmp_path_factory.mktemp("saves")), *WAYS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return {way: int(kills) for way, _, kills in (line.rpartition(" ") for line in done.stdout.splitlines())}


@pytest.mark.parametrize("way", ["plain", "background", "sharded"])
def test_a_save_killed_before_any_of_its_system_calls_leaves_the_old_or_the_new_checkpoint(
    kills_survived: dict[str, int], way: str
) -> None:
    assert kills_survived[f"unfenced {way}"] > 10


@pytest.mark.parametrize("way", ["plain", "sharded"])
def test_the_same_holds_under_a_fence(kills_survived: dict[str, int], way: str) -> None:
    assert kills_survived[f"fenced {way}"] > 10
