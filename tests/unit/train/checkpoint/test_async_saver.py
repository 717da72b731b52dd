"""Saves in the background: what is saved, what is told, and what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.errors import CheckpointDamaged, CheckpointError, CheckpointFenced
from elastic.train.checkpoint import Checkpoints, async_saver, fence, manifest, replicated_part
from elastic.train.checkpoint.async_saver import AsyncSaver
from elastic.train.statedict.sharded import SavedTensor


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ELASTIC_") or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)


def steps(folder: Path) -> list[int]:
    return [entry.step for entry in manifest.entries(folder)]


class Held:
    """A state that is written only when the test says so: its `also` waits."""

    def __init__(self) -> None:
        self.go, self.writing = threading.Event(), threading.Event()

    def __call__(self) -> dict[str, Any]:
        self.writing.set()
        assert self.go.wait(60)
        return {}


def test_a_save_holds_the_state_of_the_moment_it_was_started(tmp_path: Path) -> None:
    weight, held = torch.ones(4), Held()
    saving = AsyncSaver(Checkpoints(tmp_path))
    saving.start(10, {"model": {"w": weight}, "best": 0.5}, also=held)
    weight.zero_()
    held.go.set()
    saving.wait()
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert torch.equal(loaded["model"]["w"], torch.ones(4))
    assert loaded["best"] == 0.5


def test_tensors_that_share_memory_still_share_it_after_load(tmp_path: Path) -> None:
    weight = torch.ones(1000)
    saving = AsyncSaver(Checkpoints(tmp_path))
    saving.start(10, {"model": {"embedding": weight, "head": weight}})
    saving.wait()
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded["model"]["embedding"].data_ptr() == loaded["model"]["head"].data_ptr()
    assert (loaded.folder / "model.pt").stat().st_size < 2 * 4000


def test_the_newest_is_told_once_it_stands(tmp_path: Path) -> None:
    held, told = Held(), list[tuple[int, Path]]()
    saving = AsyncSaver(Checkpoints(tmp_path), on_saved=lambda step, folder: told.append((step, folder)))
    saving.start(10, {"value": 1}, also=held)
    assert held.writing.wait(60)
    assert told == []
    held.go.set()
    saving.wait()
    assert told == [(10, tmp_path / manifest.name(10, 0))]


def test_further_trees_are_saved_beside(tmp_path: Path) -> None:
    saving = AsyncSaver(Checkpoints(tmp_path))
    saving.start(10, {"value": 1}, also=lambda: {"rng": [1, 2]})
    saving.wait()
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert loaded.parts == {"value": 1, "rng": [1, 2]}


def test_other_ranks_return_at_once_and_write_nothing(tmp_path: Path) -> None:
    saving = AsyncSaver(Checkpoints(tmp_path, rank=1))
    saving.start(10, {"value": 1})
    saving.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_start_waits_for_the_save_before_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_saver, "MATTERS_S", -1.0)  # Every wait matters, also one for a save that was over.
    saving = AsyncSaver(Checkpoints(tmp_path))
    for step in (10, 20, 30):
        saving.start(step, {"value": step})
    saving.wait()
    assert steps(tmp_path) == [30, 20, 10]
    assert len([line for line in caplog.messages if "at step 20 for the previous save" in line]) == 1
    assert len(caplog.messages) == 1


def test_a_short_wait_for_the_save_before_is_not_worth_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_saver, "MATTERS_S", 60.0)
    saving = AsyncSaver(Checkpoints(tmp_path))
    for step in (10, 20):
        saving.start(step, {"value": step})
    saving.wait()
    assert caplog.messages == []


@pytest.mark.parametrize("call", ["start", "wait"])
def test_what_went_wrong_in_the_background_is_raised_at_the_next_call(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "folder"
    saving = AsyncSaver(Checkpoints(folder))
    saving.start(10, {"value": 1})
    saving.wait()
    folder.rename(tmp_path / "moved")
    folder.write_text("a file")
    saving.start(20, {"value": 2})
    with pytest.raises(
        CheckpointError, match=r"saving step 20 in .*: a part of that path is a file; use another"
    ) as raised:
        saving.start(30, {"value": 3}) if call == "start" else saving.wait()
    assert raised.value.__cause__ is None, "its stack trace would bury the text"
    assert [line for line in caplog.messages if "could not save step 20; earlier checkpoints are unchanged" in line]
    folder.unlink()
    (tmp_path / "moved").rename(folder)
    saving.start(40, {"value": 4})
    saving.wait()
    assert steps(folder) == [40, 10]


def test_a_part_that_could_not_be_loaded_again_is_a_checkpoint_error(tmp_path: Path) -> None:
    saving = AsyncSaver(Checkpoints(tmp_path))
    saving.start(10, {"value": Path("x")})
    with pytest.raises(CheckpointError, match=r"component 'value' contains .*Path"):
        saving.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_cannot_be_pickled_is_a_checkpoint_error_too(tmp_path: Path) -> None:
    saving = AsyncSaver(Checkpoints(tmp_path))
    saving.start(10, {"value": test_further_trees_are_saved_beside, "other": lambda: None})
    with pytest.raises(CheckpointError, match=r"step 10 failed|weights_only=True\) rejects"):
        saving.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_save_of_an_old_world_is_refused(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/7")
    saving = AsyncSaver(Checkpoints(tmp_path, generation=7, mark="abc/7"))
    fence.claim(tmp_path, "abc/8")
    saving.start(10, {"value": 1})
    with pytest.raises(CheckpointFenced):
        saving.wait()


@pytest.mark.parametrize("names", [("two words",), ("value", "1")])
def test_names_that_no_attribute_can_have_are_refused_at_once(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="component names must be valid Python names"):
        AsyncSaver(Checkpoints(tmp_path)).start(10, dict.fromkeys(names, 1))
    with pytest.raises(ValueError, match="component names must be valid Python names"):
        AsyncSaver(Checkpoints(tmp_path)).start(10, {}, {name: {} for name in names})


def test_a_part_cannot_be_replicated_and_sharded_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model cannot be both"):
        AsyncSaver(Checkpoints(tmp_path)).start(10, {"model": 1}, {"model": {}})


def test_pythons_exit_finishes_a_save_that_was_started(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from elastic.train.checkpoint import Checkpoints\n"
        "from elastic.train.checkpoint.async_saver import AsyncSaver\n"
        "AsyncSaver(Checkpoints(sys.argv[1])).start(10, {'w': torch.ones(1 << 20)})\n"
        "sys.exit(3)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 3
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    assert torch.equal(loaded["w"], torch.ones(1 << 20))


def test_a_world_of_one_without_a_process_group_saves_sharded_parts(tmp_path: Path) -> None:
    saving = AsyncSaver(Checkpoints(tmp_path))
    flat = {"w": torch.arange(6.0), "lr": 0.1, "betas": (0.9, 0.99), "none": None}
    saving.start(10, {"step": 10}, {"optimizer": flat})
    saving.wait()
    reader = Checkpoints(tmp_path)
    (candidate,) = reader.candidates()
    there: dict[str, Any] = {}

    def template(saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
        there.update(saved)
        return {"w": torch.zeros(6), "lr": 0.0, "betas": None, "none": None}

    read = reader.read_sharded(candidate, "optimizer", template)
    assert there == {"w": SavedTensor((6,), torch.float32), "lr": None, "betas": None, "none": None}
    assert torch.equal(read.pop("w"), torch.as_tensor(flat["w"]))
    assert read == {"lr": 0.1, "betas": (0.9, 0.99), "none": None}
    assert reader.read(candidate) == {"step": 10}
    for name, part in candidate.meta.files.items():
        replicated_part.verify(candidate.folder / name, part)


def test_a_sharded_part_that_is_not_there_or_damaged_is_an_error_that_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving = AsyncSaver(Checkpoints(tmp_path))
    saving.start(10, {"step": 10}, {"optimizer": {"lr": 0.1}})
    saving.wait()
    reader = Checkpoints(tmp_path)
    (candidate,) = reader.candidates()
    with pytest.raises(CheckpointError, match=r"has no sharded component 'model'; it has 'optimizer'$"):
        reader.read_sharded(candidate, "model", lambda saved: {})
    (path,) = (candidate.folder / "optimizer").glob("*.distcp")
    path.write_bytes(b"x")
    with pytest.raises(CheckpointDamaged, match=f"{path.name} has 1 bytes instead of"):
        reader.read_sharded(candidate, "optimizer", lambda saved: dict(saved))
    assert reader.damaged.keys() == {candidate.folder.name}
    assert [line for line in caplog.messages if f"skipping checkpoint {candidate.folder}: " in line]
