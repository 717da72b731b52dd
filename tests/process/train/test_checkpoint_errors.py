"""What goes wrong while several ranks save or load one checkpoint: all are told, nobody hangs, the old one stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.checkpoint_ranks import run

SCENARIOS = """
import json, pickle, resource, shutil, signal, sys
import msgspec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros
from elastic.train.checkpoint import fence, manifest

mesh = init_device_mesh("cpu", (world,))
base = Path(folder)

def weights(value, size=6):
    return {"w": distribute_tensor(torch.full((size,), float(value)), mesh, [Shard(0)]), "lr": value}

def attempt(name, function):
    dist.barrier(own)
    try:
        said = ["none", repr(function())]
    except Exception as error:
        said = [type(error).__name__, str(error)]
    dist.barrier(own)
    print(json.dumps([name, *said]), flush=True)

def save(checkpoints, step, flat):
    saver = AsyncSaver(checkpoints, own)
    saver.start(step, {"step": step}, {"model": flat})
    saver.wait()

def load(where, template):
    checkpoints = Checkpoints(where, rank=rank)
    read = checkpoints.read_sharded(checkpoints.candidates()[0], "model", lambda _: dict(template), own)
    return read.pop("w").full_tensor().tolist(), read

# Rank 1 has another folder.
elsewhere = base / ("mine" if rank == 0 else "other")
attempt("apart", lambda: save(Checkpoints(elsewhere, rank=rank), 10, weights(1)))
if rank == 1:
    assert not elsewhere.exists()

# The disk of rank 1 is full.
full = base / "full"
attempt("before", lambda: save(Checkpoints(full, rank=rank), 10, weights(1)))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
if rank == 1:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
attempt("full", lambda: save(Checkpoints(full, rank=rank), 20, weights(2, 4000)))
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
attempt("kept", lambda: load(full, weights(0)))
attempt("after", lambda: save(Checkpoints(full, rank=rank), 30, weights(3)))

# The folder belongs to a newer world.
owned = base / "owned"
if rank == 0:
    fence.claim(owned, "abc/8")
attempt("fenced", lambda: save(Checkpoints(owned, rank=rank, generation=7, mark="abc/7"), 10, weights(1)))

# What no worker could load again.
attempt("unsafe", lambda: save(Checkpoints(base / "unsafe", rank=rank), 10, {**weights(1), "path": Path("x")}))

# What does not fit.
attempt("lacking", lambda: load(full, {**weights(0), "missing": torch.zeros(3)}))
attempt("other_size", lambda: load(full, weights(0, 8)))

# Damage, to one file after the other.
model = full / manifest.name(30, 0) / "model"
for file in ("__1_0.distcp", ".metadata"):
    kept = (model / file).read_bytes()
    dist.barrier(own)
    if rank == 0:
        (model / file).write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    attempt(f"damaged {file}", lambda: load(full, weights(0)))
    if rank == 0:
        (model / file).write_bytes(kept)
attempt("repaired", lambda: load(full, weights(0)))

# A metadata file that runs code, with the right checksum.
class Runs:
    def __reduce__(self):
        return (print, ("it ran",))

if rank == 0:
    from elastic.train.checkpoint import replicated_part
    (model / ".metadata").unlink()
    with (model / ".metadata").open("xb") as file:
        summed = replicated_part.ChecksumWriter(file)
        summed.write(pickle.dumps(Runs()))
    path = model.parent / "meta.json"
    meta = json.loads(path.read_text())
    meta["sharded"]["model"][".metadata"] = msgspec.to_builtins(summed.part)
    path.write_text(json.dumps(meta))
attempt("hostile", lambda: load(full, weights(0)))
"""

Told = dict[str, list[list[Any]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What each scenario ended with, by name: error (or none) and text, for rank 0 and rank 1."""
    folder = tmp_path_factory.mktemp("trouble") / "base"
    folder.mkdir()
    found: Told = {}
    for output in run(2, SCENARIOS, folder):
        for line in output.splitlines():
            name, error, text = json.loads(line)
            found.setdefault(name, []).append([error, text])
    return found


def errors(told: Told, name: str) -> list[str]:
    return [error for error, _ in told[name]]


def test_a_folder_that_is_not_shared_is_one_line_on_all_ranks_and_nothing_is_written(told: Told) -> None:
    assert errors(told, "apart") == ["CheckpointError"] * 2
    for _, text in told["apart"]:
        assert "the checkpoint directory is not shared: files that" in text
        assert "/mine are missing in" in text
        assert "/other on" in text
        assert "use a --checkpoint-dir that every node can read and write" in text


def test_a_full_disk_of_one_rank_is_told_with_the_mend_on_all_and_keeps_the_old_checkpoint(told: Told) -> None:
    assert errors(told, "full") == ["CheckpointError"] * 2
    for _, text in told["full"]:
        assert "saving step 20 in" in text
        assert "no space left" in text
        assert "use another --checkpoint-dir" in text
    assert told["kept"] == [["none", "([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], {'lr': 1})"]] * 2
    assert errors(told, "after") == ["none"] * 2


def test_an_old_world_is_refused_on_all_ranks(told: Told) -> None:
    assert errors(told, "fenced") == ["CheckpointFenced"] * 2


def test_a_plain_value_that_would_not_be_loaded_is_refused_at_the_save(told: Told) -> None:
    assert errors(told, "unsafe") == ["CheckpointError"] * 2
    assert all("component 'model' contains" in text for _, text in told["unsafe"])


@pytest.mark.parametrize(("name", "said"), [("lacking", "missing"), ("other_size", "ize")])
def test_a_part_that_does_not_fit_the_model_is_an_error_that_names_the_key(told: Told, name: str, said: str) -> None:
    assert errors(told, name) == ["CheckpointError"] * 2
    for _, text in told[name]:
        assert "loading the sharded component 'model' failed" in text
        assert said in text


@pytest.mark.parametrize("file", ["__1_0.distcp", ".metadata"])
def test_damage_to_any_file_is_found_by_all_ranks(told: Told, file: str) -> None:
    assert told[f"damaged {file}"] == [["CheckpointDamaged", f"model: the checksum of {file} is wrong"]] * 2
    assert told["repaired"] == [["none", "([3.0, 3.0, 3.0, 3.0, 3.0, 3.0], {'lr': 3})"]] * 2


def test_metadata_that_would_run_code_is_refused_and_runs_none(told: Told) -> None:
    assert (
        told["hostile"]
        == [["CheckpointDamaged", "model: model/.metadata is not metadata of DCP (it refers to builtins.print)"]] * 2
    )


KILLED = """
import os, signal
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

mesh = init_device_mesh("cpu", (world,))

def start(step):
    flat = {"w": distribute_tensor(torch.full((6,), float(step)), mesh, [Shard(0)])}
    saver.start(step, {"step": step}, {"model": flat})

saver = AsyncSaver(Checkpoints(folder, rank=rank), own)
start(10)
saver.wait()
if rank == DOOMED:
    def hook(event, arguments):
        if event == "open" and str(arguments[0]).endswith(".distcp"):
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(hook)
start(20)
try:
    saver.wait()
except CheckpointError as error:
    print(error)
if rank != DOOMED:
    os._exit(0)  # The group is broken.
"""


@pytest.mark.parametrize("doomed", [0, 1])
def test_a_rank_that_is_killed_in_a_save_is_an_error_for_the_other_and_the_old_checkpoint_stays(
    tmp_path: Path, doomed: int
) -> None:
    folder = tmp_path / "checkpoints"
    said = run(2, KILLED.replace("DOOMED", str(doomed)), folder, killed=doomed)
    assert "step 20" in said[1 - doomed]
    published = [path.name for path in folder.iterdir() if path.name.startswith("step-")]
    assert published == ["step-0000000010.g0"]
