"""What meta.json holds, and what of it is believed."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.errors import CheckpointDamaged
from elastic.train.checkpoint import Checkpoints, manifest
from elastic.train.statedict import rng


def put(folder: Path, meta: dict[str, Any]) -> manifest.CheckpointEntry:
    """Write one checkpoint of step 5 with that meta.json."""
    there = folder / manifest.name(5, 2)
    there.mkdir()
    (there / manifest.META).write_text(
        json.dumps({"step": 5, "generation": 2, "mark": "", "parts": {}, "at": 0.0} | meta)
    )
    entry = manifest.entry_of(there)
    assert entry is not None
    return entry


def test_a_checkpoint_of_layout_1_with_sha_256_is_still_read(tmp_path: Path) -> None:
    entry = put(tmp_path, {"schema": 1})
    torch.save({"w": torch.ones(3)}, entry.folder / "model.pt")
    content = (entry.folder / "model.pt").read_bytes()
    part = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    meta = json.loads((entry.folder / manifest.META).read_text())
    (entry.folder / manifest.META).write_text(json.dumps(meta | {"parts": {"model": part}}))
    loaded = Checkpoints(tmp_path, mark="").load()
    assert loaded is not None
    assert torch.equal(loaded["model"]["w"], torch.ones(3))
    (entry.folder / "model.pt").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointDamaged, match=r"the checksum of model.pt is wrong"):
        Checkpoints(tmp_path, mark="").load()


def test_a_checkpoint_of_layout_2_of_version_0_1_0_is_still_read_in_all_its_parts() -> None:
    checkpoints = Checkpoints(Path(__file__).with_name("layout_2"), mark="")
    (candidate,) = checkpoints.candidates()
    checkpoints.verify(candidate)
    whole = checkpoints.read(candidate)
    linear = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(2))
    model.load_state_dict(whole["model"])
    assert torch.equal(linear.weight.detach(), torch.arange(4.0).reshape(2, 2))
    assert whole["model"]._metadata["1"] == {"version": 2}
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(whole["optimizer"])
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"]) == (0.25, (0.9, 0.999))
    assert whole["values"] == {"step": 7, "epoch": 1, "values": {"best": 0.5, "names": ["a", None], "pair": (1, 2)}}
    shards = checkpoints.read_sharded(
        candidate, "shards", lambda saved: {key: one and torch.empty(one.shape) for key, one in saved.items()}
    )
    assert torch.equal(shards["weight"], torch.arange(6.0).reshape(2, 3))
    assert (shards["state.step"].item(), shards["lr"]) == (7.0, 0.125)
    before = rng.capture()
    try:
        rng.restore(whole["rng"]["ranks"]["0"])
        assert (random.random(), torch.rand(1).item()) == (0.13436424411240122, 0.3971373438835144)
    finally:
        rng.restore(before)


def test_today_s_layout_is_2_and_lists_size_and_crc_32_of_every_file(tmp_path: Path) -> None:
    Checkpoints(tmp_path, mark="", generation=2, rank=0).save(5, model={"w": torch.ones(3)})
    meta = json.loads((tmp_path / manifest.name(5, 2) / manifest.META).read_text())
    assert meta["schema"] == 2
    assert meta["parts"].keys() == {"model"}
    assert meta["parts"]["model"].keys() == {"size", "crc32"}


def test_every_file_has_its_path_in_the_folder(tmp_path: Path) -> None:
    part = {"size": 1, "crc32": "00000000"}
    entry = put(tmp_path, {"schema": 2, "parts": {"step": part}, "sharded": {"model": {"__0_0.distcp": part}}})
    assert manifest.read_meta(entry).files.keys() == {"step.pt", "model/__0_0.distcp"}


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"schema": 3}, "it has layout 3, but this version reads layout 2"),
        ({"parts": {"../x": {"size": 1}}}, "has an invalid component name"),
        ({"sharded": {"a/b": {}}}, "has an invalid component name"),
        ({"sharded": {"model": {"../../x": {"size": 1}}}}, "has an invalid file name"),
        ({"sharded": {"model": {"..": {"size": 1}}}}, "has an invalid file name"),
        ({"step": 6}, "is that of step 6"),
        ({"parts": {"model": {"size": "1"}}}, "is damaged"),
    ],
)
def test_a_meta_json_that_is_not_ours_is_damage_that_is_named(tmp_path: Path, meta: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointDamaged, match=said):
        manifest.read_meta(put(tmp_path, meta))


@pytest.mark.parametrize("name", ["aside-step-0000000005.g2", ".saving-g0-ab", "step-5.g2", "step-0000000005", "fence"])
def test_other_names_are_no_checkpoints(tmp_path: Path, name: str) -> None:
    assert manifest.entry_of(tmp_path / name) is None
