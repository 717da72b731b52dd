"""Sharded state on the disk: written by one world, read by another, whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scripts.checkpoint_ranks import run

MODEL = """
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)

def built(seed, steps):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * seed)
    for step in range(steps):
        torch.manual_seed(step)
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer

def state(model, optimizer):
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer, options=FLAT)}

def whole(flat):
    return {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in flat.items()}
"""

SAVE = (
    MODEL
    + """
model, optimizer = built(1, 3)
saver = AsyncSaver(Checkpoints(folder, rank=rank), own)
sharded = state(model, optimizer)
saver.start(30, {"step": 30, "best": torch.tensor(0.5)}, sharded)
full = {part: whole(flat) for part, flat in sharded.items()}
with torch.no_grad():
    for parameter in model.parameters():
        parameter.zero_()
saver.wait()
if rank == 0:
    torch.save(full, Path(folder).parent / "full.pt")
assert (Path(folder) / "step-0000000030.g0").is_dir()
"""
)

LOAD = (
    MODEL
    + """
model, optimizer = built(2, 1)
checkpoints = Checkpoints(folder, rank=rank)
candidate, = checkpoints.candidates()
assert checkpoints.read(candidate)["step"] == 30
sharded = state(model, optimizer)
plain = {part: checkpoints.read_sharded(candidate, part, lambda _, one=one: one, own) for part, one in sharded.items()}
assert plain["optimizer"]["param_groups.0.weight.lr"] == 0.01, plain
set_model_state_dict(model, {**sharded["model"], **plain["model"]})
set_optimizer_state_dict(model, optimizer, {**sharded["optimizer"], **plain["optimizer"]}, options=FLAT)
full = torch.load(Path(folder).parent / "full.pt", weights_only=True)
for part, flat in state(model, optimizer).items():
    for key, value in whole(flat).items():
        expected = full[part][key]
        assert torch.equal(value, expected) if isinstance(value, torch.Tensor) else value == expected, (part, key)
"""
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint that a world of two wrote."""
    folder = tmp_path_factory.mktemp("sharded") / "checkpoints"
    run(2, SAVE, folder)
    return folder


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_two_ranks_saved_any_number_of_ranks_load_bit_for_bit(saved: Path, world: int) -> None:
    run(world, LOAD, saved)


def test_the_folder_has_meta_json_one_file_per_replicated_and_one_folder_per_sharded_part(saved: Path) -> None:
    folder = saved / "step-0000000030.g0"
    assert sorted(os.listdir(folder)) == ["best.pt", "meta.json", "model", "optimizer", "step.pt"]
    assert sorted(os.listdir(folder / "model")) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert os.listdir(saved) == [folder.name]
