"""The files that ModelCheckpoint asks for: whole or absent, by the newest generation, and listed for a later start."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.errors import CheckpointError, CheckpointFenced
from elastic.train.checkpoint import fence
from tests.support.frameworks import needs

pytestmark = needs("lightning")

if importlib.util.find_spec("lightning"):
    from elastic.integrations.lightning.checkpoint_io import STEP, FencedCheckpointIO

WHOLE = {"optimizer_states": [], "weight": torch.zeros(2)}


def files(folder: Path, mark: str = "", committed: int = 0, state: dict[str, Any] | None = None) -> Any:
    folder.mkdir(exist_ok=True)
    return FencedCheckpointIO(str(folder), mark, lambda: committed, lambda: state or {})


def test_a_file_is_what_lightning_loads(tmp_path: Path) -> None:
    io = files(tmp_path / "job")
    path = tmp_path / "deep" / "a.ckpt"
    io.save_checkpoint(WHOLE, path)
    assert io.load_checkpoint(path)["weight"].tolist() == [0, 0]
    assert [one.name for one in path.parent.iterdir()] == ["a.ckpt"]


def test_the_newest_step_is_loaded_from_memory(tmp_path: Path) -> None:
    assert files(tmp_path, state={"weight": 3}).load_checkpoint(STEP) == {"weight": 3}


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    io = files(tmp_path / "job")
    path = tmp_path / "files" / "a.ckpt"
    io.save_checkpoint(WHOLE, path)
    with pytest.raises(Exception, match="pickle"):
        io.save_checkpoint({"weight": lambda: None}, path)
    assert io.load_checkpoint(path)["weight"].tolist() == [0, 0]
    assert len(list(path.parent.iterdir())) == 1


def test_a_folder_that_is_a_file_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="dirpath"):
        files(tmp_path / "job").save_checkpoint(WHOLE, tmp_path / "file" / "a.ckpt")


def test_a_worker_of_an_older_generation_can_neither_write_nor_remove(tmp_path: Path) -> None:
    job = tmp_path / "job"
    old = files(job, "run/1")
    fence.claim(job, "run/1")
    path = tmp_path / "a.ckpt"
    old.save_checkpoint(WHOLE, path)
    fence.claim(job, "run/2")
    with pytest.raises(CheckpointFenced):
        old.save_checkpoint(WHOLE, tmp_path / "b.ckpt")
    with pytest.raises(CheckpointFenced):
        old.remove_checkpoint(path)
    assert path.exists()
    assert not (tmp_path / "b.ckpt").exists()


def test_the_newest_file_that_is_still_there_is_found(tmp_path: Path) -> None:
    job = tmp_path / "job"
    paths = [tmp_path / f"{step}.ckpt" for step in (2, 4, 6)]
    for step, path in zip((2, 4, 6), paths, strict=True):
        files(job, committed=step).save_checkpoint(WHOLE, path)
    io = files(job)
    assert (io.published().path, io.published().committed) == (str(paths[2]), 6)
    io.remove_checkpoint(paths[2])
    assert io.published().committed == 4


def test_weights_alone_are_nothing_to_resume_from(tmp_path: Path) -> None:
    io = files(tmp_path / "job", committed=5)
    io.save_checkpoint({"state_dict": {}}, tmp_path / "a.ckpt")
    assert io.published() is None


def test_without_a_folder_of_the_job_nothing_is_listed(tmp_path: Path) -> None:
    io = FencedCheckpointIO("", "", lambda: 5, dict)
    io.save_checkpoint(WHOLE, tmp_path / "a.ckpt")
    assert io.published() is None
