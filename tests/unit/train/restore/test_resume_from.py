"""Starting from what another run left, and taking a plain file out of a checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import elastic
from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import Checkpoints, fence, manifest
from elastic.train.checkpoint.async_saver import AsyncSaver
from elastic.train.checkpoint.export import export, main
from elastic.train.restore.initial_state import resume_from

MODEL = {"w": torch.arange(6.0), "b": torch.ones(2)}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ELASTIC_") or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints of another job, the newer with a sharded model."""
    there = tmp_path / "checkpoints"
    fence.claim(there, "xyz/3")
    saver = AsyncSaver(Checkpoints(there, generation=3, mark="xyz/3"))
    saver.start(10, {"model": MODEL, "best": 0.5})
    saver.start(20, {"best": 0.25}, {"model": {key: value + 1 for key, value in MODEL.items()}})
    saver.wait()
    return there


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


class TestResumeFrom:
    def test_a_checkpoint_dir_offers_its_checkpoints_newest_first(self, folder: Path) -> None:
        assert [candidate.step for candidate in resume_from(folder).candidates] == [20, 10]

    def test_one_checkpoint_offers_itself(self, folder: Path) -> None:
        warm = resume_from(folder / manifest.name(10, 3))
        assert [candidate.step for candidate in warm.candidates] == [10]
        trees = Checkpoints(folder.parent / "own").read(warm.candidates[0])
        assert torch.equal(trees["model"]["w"], MODEL["w"])

    def test_an_exported_file_offers_its_parts(self, folder: Path, tmp_path: Path) -> None:
        warm = resume_from(export(folder, tmp_path / "m.pt"))
        assert warm.candidates == ()
        assert torch.equal(warm.trees["model"]["w"], MODEL["w"] + 1)
        warm = resume_from(export(folder, tmp_path / "both.pt", ("model", "best")))
        assert warm.trees.keys() == {"model", "best"}
        assert warm.trees["best"] == 0.25

    def test_a_state_dict_of_torch_save_is_a_model(self, tmp_path: Path) -> None:
        torch.save(MODEL, tmp_path / "plain.pth")
        assert resume_from(tmp_path / "plain.pth").trees.keys() == {"model"}

    @pytest.mark.parametrize("content", [b"", b"no zip at all", b"abc", b"K", b"}."])
    def test_an_unreadable_file_is_one_line(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "m.pt").write_bytes(content)
        with pytest.raises(
            CheckpointError, match=r"--resume-from .*m.pt: torch\.load\(weights_only=True\) cannot"
        ) as caught:
            resume_from(tmp_path / "m.pt")
        assert "\n" not in str(caught.value)

    def test_a_file_that_would_run_code_is_refused(self, tmp_path: Path) -> None:
        torch.save({"model": Path("x")}, tmp_path / "m.pt")
        with pytest.raises(CheckpointError, match="weights_only=True"):
            resume_from(tmp_path / "m.pt")

    def test_a_missing_path_and_an_empty_folder_are_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="the path does not exist"):
            resume_from(tmp_path / "absent")
        with pytest.raises(CheckpointError, match="there is no checkpoint in that directory"):
            resume_from(tmp_path)

    def test_a_renamed_checkpoint_is_told_apart_from_an_empty_folder(self, folder: Path) -> None:
        (folder / manifest.name(10, 3)).rename(folder / "best")
        with pytest.raises(CheckpointError, match=r"names like step-0000001234.g7, but this one was renamed"):
            resume_from(folder / "best")

    def test_a_folder_of_damaged_checkpoints_is_one_line(self, folder: Path) -> None:
        for step in (10, 20):
            (folder / manifest.name(step, 3) / manifest.META).write_bytes(b"")
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read"):
            resume_from(folder)

    def test_a_checkpoint_that_a_disk_withholds_may_be_there_at_the_next_start(self, folder: Path) -> None:
        meta = folder / manifest.name(10, 3) / manifest.META
        meta.unlink()
        meta.symlink_to("/proc/self/mem")  # The kernel gives an error of the disk for its first page.
        with pytest.raises(CheckpointError, match=r"meta.json cannot be read") as raised:
            resume_from(meta.parent)
        assert raised.value.transient
        meta.unlink()
        with pytest.raises(CheckpointError, match=r"meta.json cannot be read") as raised:
            resume_from(meta.parent)
        assert not raised.value.transient


class TestExport:
    def test_a_sharded_model_becomes_a_plain_state_dict(self, folder: Path, tmp_path: Path) -> None:
        exported = torch.load(elastic.export(folder, tmp_path / "m.pt"), weights_only=True)
        assert exported.keys() == MODEL.keys()
        assert all(torch.equal(exported[key], MODEL[key] + 1) for key in MODEL)

    def test_one_checkpoint_of_several_can_be_named(self, folder: Path, tmp_path: Path) -> None:
        export(folder / manifest.name(10, 3), tmp_path / "m.pt")
        assert torch.equal(torch.load(tmp_path / "m.pt", weights_only=True)["w"], MODEL["w"])

    def test_a_damaged_one_is_skipped_with_a_line_unless_it_was_named(
        self, folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        damage(folder / manifest.name(20, 3) / "model" / "__0_0.distcp")
        export(folder, tmp_path / "m.pt")
        assert torch.equal(torch.load(tmp_path / "m.pt", weights_only=True)["w"], MODEL["w"])
        assert ": the checksum of __0_0.distcp is wrong" in caplog.messages[0]
        with pytest.raises(CheckpointDamaged):
            export(folder / manifest.name(20, 3), tmp_path / "m.pt")

    def test_a_part_that_is_not_there_is_an_error_that_names_those_there_are(
        self, folder: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(CheckpointError, match="has no component ema; it has best, model"):
            export(folder, tmp_path / "m.pt", ("ema",))
        assert not (tmp_path / "m.pt").exists()

    def test_a_file_that_cannot_be_written_keeps_the_old_one_and_names_the_mend(
        self, folder: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "m.pt").write_text("old")
        with pytest.raises(CheckpointError, match=r"a part of that path is a file; use another file"):
            export(folder, tmp_path / "m.pt" / "m.pt")
        assert (tmp_path / "m.pt").read_text() == "old"

    def test_it_is_a_command(self, folder: Path, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "elastic.train.export", str(folder), str(tmp_path / "m.pt"), "--part", "best"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert torch.load(tmp_path / "m.pt", weights_only=True) == 0.25

    def test_a_mistake_is_one_line(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(tmp_path), str(tmp_path / "m.pt")]) == 1
        assert capsys.readouterr().err == f"no checkpoint in {tmp_path} can be read\n"
