"""Saving and loading checkpoints: whole or not there, newest first, fenced."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import torch

from elastic.errors import CheckpointDamaged, CheckpointError, CheckpointFenced
from elastic.train import checkpoint
from elastic.train.checkpoint import Checkpoints, atomic_files, fence, manifest
from elastic.train.checkpoint import folder as folder_module


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ELASTIC_") or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class TestRoundTrip:
    def test_an_empty_or_absent_folder_loads_none(self, tmp_path: Path) -> None:
        assert Checkpoints(tmp_path).load() is None
        assert Checkpoints(tmp_path / "absent").load() is None

    def test_parts_come_back_as_they_were_saved(self, tmp_path: Path) -> None:
        weights = {"w": torch.arange(6.0).reshape(2, 3)}
        target = Checkpoints(tmp_path, generation=7).save(1234, model=weights, extra=[1, 2.5, "text", None])
        assert target == tmp_path / "step-0000001234.g7"
        assert names(target) == ["extra.pt", "meta.json", "model.pt"]
        loaded = Checkpoints(tmp_path).load()
        assert loaded is not None
        assert (loaded.step, loaded.generation, loaded.folder) == (1234, 7, target)
        assert torch.equal(loaded["model"]["w"], weights["w"])
        assert loaded["extra"] == [1, 2.5, "text", None]

    def test_the_highest_step_wins_whatever_the_generation(self, tmp_path: Path) -> None:
        Checkpoints(tmp_path, generation=9).save(10, value=1)
        Checkpoints(tmp_path, generation=1).save(20, value=2)
        loaded = Checkpoints(tmp_path).load()
        assert loaded is not None
        assert loaded.step == 20

    def test_only_rank_0_writes_and_all_ranks_load(self, tmp_path: Path) -> None:
        assert Checkpoints(tmp_path, rank=1).save(10, value=1) is None
        assert names(tmp_path) == []
        Checkpoints(tmp_path, rank=0).save(10, value=1)
        loaded = Checkpoints(tmp_path, rank=1).load()
        assert loaded is not None
        assert loaded["value"] == 1

    def test_a_second_save_of_one_step_replaces_the_first(self, tmp_path: Path) -> None:
        saver = Checkpoints(tmp_path)
        saver.save(10, value=1)
        saver.save(10, value=2)
        loaded = saver.load()
        assert loaded is not None
        assert loaded["value"] == 2
        assert names(tmp_path) == [manifest.name(10, 0)]

    def test_the_newest_three_stay(self, tmp_path: Path) -> None:
        for step in range(10, 60, 10):
            Checkpoints(tmp_path).save(step, value=step)
        assert names(tmp_path) == [manifest.name(step, 0) for step in (30, 40, 50)]

    def test_at_least_one_stays(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="keep must be at least 1, not 0"):
            Checkpoints(tmp_path, keep=0)
        kept = Checkpoints(tmp_path, keep=1, rank=0)
        for step in (1, 2):
            kept.save(step, value=step)
        assert [candidate.step for candidate in kept.candidates()] == [2]

    def test_without_the_launcher_the_environment_chooses_the_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        checkpoint.save(5, value=1)
        assert names(tmp_path / "checkpoints") == [manifest.name(5, 0)]
        monkeypatch.setenv("ELASTIC_CHECKPOINT_DIR", str(tmp_path / "other"))
        assert checkpoint.load() is None

    def test_the_folder_is_made_with_all_that_lead_there(self, tmp_path: Path) -> None:
        Checkpoints(tmp_path / "a" / "b").save(5, value=1)
        loaded = Checkpoints(tmp_path / "a" / "b").load()
        assert loaded is not None
        assert loaded["value"] == 1

    def test_the_newest_checkpoint_of_the_launchers_folder_is_loaded_to_where_one_says(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ELASTIC_CHECKPOINT_DIR", str(tmp_path))
        checkpoint.save(5, model={"w": torch.ones(2)})
        for where in ("cpu", "meta"):
            loaded = checkpoint.load(map_location=where)
            assert loaded is not None
            assert (loaded.step, loaded["model"]["w"].device.type) == (5, where)

    def test_what_nobody_could_find_again_is_refused_at_the_save(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="step is -1; it must be 0 or more"):
            Checkpoints(tmp_path).save(-1, value=1)
        with pytest.raises(ValueError, match="component names must be valid Python names: a/b"):
            Checkpoints(tmp_path).save(1, **{"a/b": 1})
        assert names(tmp_path) == []

    def test_one_that_newer_ones_replace_while_it_is_read_is_no_damage_and_the_newest_is_taken(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Raced(Checkpoints):
            saves: ClassVar[list[int]] = [20]

            def read(self, candidate: manifest.CheckpointCandidate, *, map_location: Any = "cpu") -> dict[str, Any]:
                if self.saves:
                    Checkpoints(tmp_path, keep=1).save(self.saves.pop(), value=candidate.step)
                return super().read(candidate, map_location=map_location)

        Checkpoints(tmp_path).save(10, value=0)
        loaded = Raced(tmp_path).load()
        assert loaded is not None
        assert (loaded.step, loaded["value"]) == (20, 10)
        Raced.saves = list(range(100, 20, -1))
        with pytest.raises(CheckpointError, match="are being replaced faster than they can be read"):
            Raced(tmp_path).load()
        assert caplog.messages == []

    def test_one_that_is_gone_when_its_meta_json_is_read_is_no_damage(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / manifest.name(10, 0)).symlink_to(tmp_path / "gone")
        assert Checkpoints(tmp_path).load() is None
        assert caplog.messages == []

    def test_a_part_that_could_not_be_loaded_again_is_refused_at_the_save(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"component 'path' contains .*Path.*weights_only=True\) rejects"):
            Checkpoints(tmp_path).save(5, path=Path("x"))
        assert names(tmp_path) == []

    def test_importing_the_module_does_not_import_torch(self) -> None:
        code = "import sys, elastic.train.checkpoint; sys.exit(bool({'torch', 'grpc'} & set(sys.modules)))"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestDamage:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for step in (10, 20):
            Checkpoints(tmp_path).save(step, model={"w": torch.full((1000,), float(step))})
        return tmp_path

    @pytest.mark.parametrize(
        ("file", "content", "said"),
        [
            ("model.pt", None, "model.pt cannot be read"),
            ("model.pt", b"short", "model.pt has 5 bytes instead of"),
            ("meta.json", None, "meta.json cannot be read"),
            ("meta.json", b'{"step":', "meta.json is damaged"),
        ],
    )
    def test_a_damaged_one_is_skipped_with_one_line_and_the_one_before_is_taken(
        self, folder: Path, caplog: pytest.LogCaptureFixture, file: str, content: bytes | None, said: str
    ) -> None:
        path = folder / manifest.name(20, 0) / file
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with caplog.at_level(logging.WARNING):
            loaded = Checkpoints(folder).load()
        assert loaded is not None
        assert loaded.step == 10
        assert len(caplog.messages) == 1
        assert said in caplog.messages[0]

    def test_a_single_wrong_bit_is_found(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        path = folder / manifest.name(20, 0) / "model.pt"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        loaded = Checkpoints(folder).load()
        assert loaded is not None
        assert loaded.step == 10
        assert "the checksum of model.pt is wrong" in caplog.messages[0]

    def test_what_could_run_code_is_not_loaded_and_is_no_damage(self, folder: Path) -> None:
        there = folder / manifest.name(20, 0)
        torch.save({"w": Path("x")}, there / "model.pt")
        content = (there / "model.pt").read_bytes()
        meta = msgspec.json.decode((there / manifest.META).read_bytes(), type=manifest.CheckpointMeta)
        part = manifest.PartFile(len(content), crc32=f"{zlib.crc32(content):08x}")
        (there / manifest.META).write_bytes(msgspec.json.encode(msgspec.structs.replace(meta, parts={"model": part})))
        with pytest.raises(CheckpointError, match=r"model\.pt contains more than .* is not safe to load") as raised:
            Checkpoints(folder).load()
        assert not isinstance(raised.value, CheckpointDamaged)

    def test_a_file_that_is_not_there_is_damage_for_who_only_verifies(self, folder: Path) -> None:
        reader = Checkpoints(folder)
        newest = reader.candidates()[0]
        reader.verify(newest)
        (newest.folder / "model.pt").unlink()
        with pytest.raises(CheckpointDamaged, match=r"model\.pt cannot be read \(No such file"):
            reader.verify(newest)

    def test_training_does_not_start_over_when_every_checkpoint_is_damaged(self, folder: Path) -> None:
        for step in (10, 20):
            (folder / manifest.name(step, 0) / "meta.json").write_bytes(b"")
        with pytest.raises(
            CheckpointDamaged, match=r"no checkpoint in .* can be read .* remove them all to start from scratch"
        ):
            Checkpoints(folder).load()

    def test_a_damaged_one_does_not_count_among_those_that_stay(self, folder: Path) -> None:
        (folder / manifest.name(20, 0) / "model.pt").write_bytes(b"")
        saver = Checkpoints(folder, keep=2)
        assert saver.load() is not None
        saver.save(15, value=1)
        assert names(folder) == [manifest.name(step, 0) for step in (10, 15, 20)]
        saver.save(30, value=1)
        assert names(folder) == [manifest.name(step, 0) for step in (15, 20, 30)]

    def test_one_that_is_saved_again_is_no_longer_damaged(self, folder: Path) -> None:
        (folder / manifest.name(20, 0) / "model.pt").write_bytes(b"")
        saver = Checkpoints(folder, keep=1)
        assert saver.load() is not None
        saver.save(20, value=1)
        assert names(folder) == [manifest.name(20, 0)]

    def test_who_has_removed_all_that_were_damaged_starts_over(self, folder: Path) -> None:
        saver = Checkpoints(folder)
        for step in (10, 20):
            (folder / manifest.name(step, 0) / "model.pt").write_bytes(b"")
        with pytest.raises(CheckpointDamaged):
            saver.load()
        for step in (10, 20):
            shutil.rmtree(folder / manifest.name(step, 0))
        assert saver.load() is None

    def test_leftovers_of_a_killed_save_are_not_read_and_are_removed_when_old(self, folder: Path) -> None:
        old = atomic_files.staging(folder, ".saving-g0-")
        new = atomic_files.staging(folder, ".saving-g0-")
        os.utime(old, (0, 0))
        saver = Checkpoints(folder)
        loaded = saver.load()
        assert loaded is not None
        assert loaded.step == 20
        saver.save(30, value=1)
        assert not old.exists()
        assert new.exists()


class TestFenced:
    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(folder_module, "MARK_WAIT_S", 0.0)
        fence.claim(tmp_path, "abc/7")
        return tmp_path

    def test_the_variables_of_the_launcher_are_followed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ELASTIC_CHECKPOINT_DIR", str(folder))
        monkeypatch.setenv("ELASTIC_GENERATION", "7")
        monkeypatch.setenv("ELASTIC_FENCE", "abc/7")
        monkeypatch.setenv("ELASTIC_PROGRESS_FILE", str(folder / "progress"))
        monkeypatch.setenv("RANK", "0")
        assert checkpoint.save(5, value=1) == folder / "step-0000000005.g7"
        assert (folder / "progress").read_text() == "5\n"
        fence.claim(folder, "abc/8")
        with pytest.raises(CheckpointFenced):
            checkpoint.save(6, value=1)
        assert (folder / "progress").read_text() == "5\n"
        monkeypatch.setenv("RANK", "1")
        assert checkpoint.save(7, value=1) is None

    def test_a_save_is_refused_before_anything_is_written(self, folder: Path) -> None:
        old = Checkpoints(folder, generation=7, mark="abc/7")
        fence.claim(folder, "abc/8")
        with pytest.raises(CheckpointFenced, match="belongs to generation abc/8"):
            old.stage()
        assert names(folder) == ["fence"]

    def test_a_folder_that_nobody_has_claimed_yet_has_no_checkpoints_for_a_worker_with_a_mark(
        self, tmp_path: Path
    ) -> None:
        assert Checkpoints(tmp_path / "new", generation=7, mark="abc/7").candidates() == []

    def test_a_claim_right_after_the_rename_lists_what_was_saved_so_the_save_holds(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publish = atomic_files.publish

        def then_claim(staged: Path, target: Path) -> bool:
            monkeypatch.setattr(atomic_files, "publish", publish)
            done = publish(staged, target)
            fence.claim(folder, "abc/8")
            return done

        monkeypatch.setattr(atomic_files, "publish", then_claim)
        assert Checkpoints(folder, generation=7, mark="abc/7").save(10, value=7) is not None
        loaded = Checkpoints(folder, generation=8, mark="abc/8").load()
        assert loaded is not None
        assert (loaded.step, loaded["value"]) == (10, 7)

    def test_plain_python_keeps_three_in_a_folder_that_a_job_once_claimed(self, folder: Path) -> None:
        for step in range(10, 60, 10):
            Checkpoints(folder).save(step, value=step)
        assert names(folder) == ["fence", *(manifest.name(step, 0) for step in (30, 40, 50))]

    def test_one_whose_meta_json_is_damaged_neither_fails_a_save_nor_is_it_taken_for_a_stray(
        self, folder: Path
    ) -> None:
        saver = Checkpoints(folder, generation=7, mark="abc/7")
        saver.save(10, value=1)
        (folder / manifest.name(10, 7) / manifest.META).write_bytes(b"")
        saver.save(20, value=2)
        assert manifest.name(10, 7) in names(folder)

    def test_a_worker_of_an_old_world_can_neither_save_nor_load(self, folder: Path) -> None:
        old = Checkpoints(folder, generation=7, mark="abc/7")
        old.save(10, value=7)
        fence.claim(folder, "abc/8")
        before = names(folder)
        with pytest.raises(CheckpointFenced, match="belongs to generation abc/8"):
            old.save(20, value=7)
        with pytest.raises(CheckpointFenced, match="belongs to generation abc/8"):
            old.load()
        assert names(folder) == before

    def test_a_worker_of_an_old_world_is_not_even_told_what_there_is(self, folder: Path) -> None:
        Checkpoints(folder, rank=0, generation=7, mark="abc/7").save(10, value=7)
        fence.claim(folder, "abc/8")
        with pytest.raises(CheckpointFenced, match="belongs to generation abc/8"):
            Checkpoints(folder, rank=1, generation=7, mark="abc/7").candidates()
        for other in ("abc/9", "xyz/7", ""):  # Whose claim comes, or was replaced by that of another job; nobody's.
            assert Checkpoints(folder, rank=1, generation=9, mark=other).candidates()

    def test_a_folder_that_is_not_shared_is_an_error_at_the_first_load(self, folder: Path) -> None:
        for elsewhere in (folder, folder / "empty"):
            with pytest.raises(CheckpointError, match=r"belongs to .* the directory is not shared") as caught:
                Checkpoints(elsewhere, rank=1, generation=8, mark="abc/8").load()
            assert not isinstance(caught.value, CheckpointFenced)

    def test_where_the_launcher_could_not_write_its_mark_rank_0_says_so(self, folder: Path) -> None:
        for elsewhere, stands in ((folder, "generation abc/7"), (folder / "empty", "no generation")):
            with pytest.raises(CheckpointError, match=f"belongs to {stands} instead of abc/8: the launcher could not"):
                Checkpoints(elsewhere, rank=0, generation=8, mark="abc/8").load()

    def test_a_load_names_the_job_that_took_the_folder(self, folder: Path) -> None:
        fence.claim(folder, "xyz/1")
        with pytest.raises(CheckpointFenced, match=r"another job \(xyz/1\) has claimed"):
            Checkpoints(folder, generation=8, mark="abc/8").load()

    def test_a_load_waits_for_the_mark_that_another_node_is_about_to_write(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folder_module, "MARK_WAIT_S", 10.0)
        monkeypatch.setattr(time, "sleep", lambda _: fence.claim(folder, "abc/8"))
        assert Checkpoints(folder, rank=1, generation=8, mark="abc/8").load() is None

    def test_a_claim_in_the_middle_of_a_save_refuses_it(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write = atomic_files.write

        def claim_meanwhile(path: Path, data: bytes) -> None:
            write(path, data)
            if path.name == manifest.META:
                fence.claim(folder, "abc/8")

        monkeypatch.setattr(atomic_files, "write", claim_meanwhile)
        with pytest.raises(CheckpointFenced):
            Checkpoints(folder, generation=7, mark="abc/7").save(10, value=7)
        assert names(folder) == ["fence"]

    def test_a_save_frozen_just_before_its_rename_is_refused_and_ignored_however_late_it_lands(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        Checkpoints(folder, generation=7, mark="abc/7").save(10, value=7)
        publish = atomic_files.publish

        def freeze(staged: Path, target: Path) -> bool:
            monkeypatch.setattr(atomic_files, "publish", publish)
            fence.claim(folder, "abc/8")
            Checkpoints(folder, generation=8, mark="abc/8").save(20, value=8)
            return publish(staged, target)

        monkeypatch.setattr(atomic_files, "publish", freeze)
        with pytest.raises(CheckpointFenced):
            Checkpoints(folder, generation=7, mark="abc/7").save(90, value=7)
        assert manifest.name(90, 7) in names(folder)

        fence.claim(folder, "abc/9")
        newest = Checkpoints(folder, generation=9, mark="abc/9")
        loaded = newest.load()
        assert loaded is not None
        assert (loaded.step, loaded["value"]) == (20, 8)
        assert caplog.messages == [
            f"skipping checkpoint {folder / manifest.name(90, 7)}: generation abc/7 wrote it after its end"
        ]
        newest.save(30, value=9)
        assert names(folder) == ["fence", manifest.name(10, 7), manifest.name(20, 8), manifest.name(30, 9)]

    def test_a_worker_that_was_overtaken_after_its_save_removes_nothing(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = Checkpoints(folder, keep=1, generation=7, mark="abc/7")
        old.save(10, value=7)
        monkeypatch.setattr(Checkpoints, "_report", lambda *_: fence.claim(folder, "abc/8"))
        assert old.save(20, value=7) is not None
        assert names(folder) == ["fence", manifest.name(10, 7), manifest.name(20, 7)]

    def test_plain_python_ignores_strays_too(self, folder: Path) -> None:
        Checkpoints(folder, generation=7, mark="abc/7").save(10, value=7)
        Checkpoints(folder, generation=6, mark="").save(20, value=0)
        stray = manifest.CheckpointMeta(step=90, generation=6, mark="abc/6", parts={}, at=0.0)
        (folder / manifest.name(90, 6)).mkdir()
        (folder / manifest.name(90, 6) / manifest.META).write_bytes(msgspec.json.encode(stray))
        loaded = Checkpoints(folder).load()
        assert loaded is not None
        assert loaded.step == 20

    def test_a_folder_that_only_the_script_knows_is_not_fenced(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ELASTIC_CHECKPOINT_DIR", str(folder))
        monkeypatch.setenv("ELASTIC_FENCE", "abc/6")
        assert Checkpoints(tmp_path / "own").save(5, value=1) is not None


class TestDisk:
    def test_a_full_disk_names_the_mend_and_keeps_the_old_checkpoint(self, tmp_path: Path) -> None:
        saver = Checkpoints(tmp_path)
        saver.save(10, model={"w": torch.zeros(10)})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
        try:
            with pytest.raises(CheckpointError, match=r"saving step 20 .*no space left .*another --checkpoint-dir"):
                saver.save(20, model={"w": torch.zeros(1 << 20)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        loaded = saver.load()
        assert loaded is not None
        assert loaded.step == 10
        assert names(tmp_path) == [manifest.name(10, 0)]

    def test_a_folder_that_cannot_be_made_names_the_mend(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(CheckpointError, match="a part of that path is a file"):
            Checkpoints(tmp_path / "file" / "folder").save(5, value=1)

    def test_an_agent_that_cannot_be_told_does_not_undo_the_save(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ELASTIC_PROGRESS_FILE", str(tmp_path / "absent" / "progress"))
        saver = Checkpoints(tmp_path)
        assert saver.save(5, value=1) is not None
        assert "saved step 5, but cannot report it to the agent" in caplog.messages[0]
