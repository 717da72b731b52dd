"""Going back to an earlier step: once for each run, and nothing is lost."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from elastic.errors import CheckpointDamaged, CheckpointError, CheckpointFenced, RestoreUnrecoverable
from elastic.train.checkpoint import Checkpoints, fence, manifest
from elastic.train.restore.restore_step import RECORD, rollback, rolled_back, run_mark


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ELASTIC_") or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (10, 20, 30):
        Checkpoints(tmp_path, generation=2).save(step, value=step)
    return tmp_path


def newest(folder: Path) -> int:
    loaded = Checkpoints(folder).load()
    assert loaded is not None
    return loaded.step


def aside(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("aside-"))


def test_newer_checkpoints_no_longer_count_and_are_kept_under_another_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = rollback(Checkpoints(folder, generation=5), 10, "abc")
    assert newest(folder) == 10
    assert caplog.messages == [f"rolling back to step 10: set aside 2 newer checkpoints in {folder}, as aside-*"]
    assert aside(folder) == ["aside-step-0000000020.g2", "aside-step-0000000030.g2"]
    assert sorted(record.aside) == aside(folder)
    (folder / "aside-step-0000000030.g2").rename(folder / manifest.name(30, 2))
    assert newest(folder) == 30


def test_what_was_set_aside_is_never_pruned(folder: Path) -> None:
    rollback(Checkpoints(folder), 10, "abc")
    for step in (11, 12, 13, 14):
        Checkpoints(folder).save(step, value=step)
    assert len(aside(folder)) == 2


def test_a_restart_of_the_same_run_does_not_go_back_a_second_time_and_says_so_if_there_is_newer_work(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rollback(Checkpoints(folder, generation=5), 10, "abc")
    caplog.clear()
    rollback(Checkpoints(folder), 10, "abc")
    assert caplog.messages == []
    Checkpoints(folder).save(15, value=15)
    rollback(Checkpoints(folder), 10, "abc")
    assert newest(folder) == 15
    (line,) = caplog.messages
    assert line.startswith("--restore-step 10: this run of the job rolled back to it in generation 5")
    assert str(folder / RECORD) in line


@pytest.mark.parametrize("run", ["xyz", ""])
def test_another_run_and_plain_python_go_back_anew(folder: Path, run: str) -> None:
    rollback(Checkpoints(folder), 20, "abc")
    Checkpoints(folder).save(25, value=25)
    rollback(Checkpoints(folder), 20, run)
    assert newest(folder) == 20


def test_the_same_run_can_go_back_further(folder: Path) -> None:
    rollback(Checkpoints(folder), 20, "abc")
    rollback(Checkpoints(folder), 10, "abc")
    assert newest(folder) == 10


def test_plain_python_goes_back_at_each_start(folder: Path) -> None:
    for _ in range(2):
        rollback(Checkpoints(folder), 10, "")
        assert newest(folder) == 10
        Checkpoints(folder, generation=2).save(30, value=30)
    assert [name[-5:] for name in aside(folder)] == ["20.g2", "30.g2", ".g2.2"]


def test_the_generation_from_which_memory_counts_is_noted(folder: Path) -> None:
    assert rolled_back(folder) is None
    rollback(Checkpoints(folder, generation=5), 10, "abc")
    record = rolled_back(folder)
    assert record is not None
    assert (record.run, record.step, record.generation) == ("abc", 10, 5)


def test_a_step_without_a_checkpoint_is_an_error_that_names_those_there_are(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"--restore-step 15: there is no such checkpoint; .* steps 30, 20, 10"):
        rollback(Checkpoints(folder), 15, "abc")
    assert newest(folder) == 30
    with pytest.raises(CheckpointError, match=r"--restore-step 15: .* has no checkpoint$"):
        rollback(Checkpoints(folder / "empty"), 15, "abc")


def test_a_damaged_step_is_an_error_before_anything_is_renamed(folder: Path) -> None:
    path = folder / manifest.name(10, 2) / "value.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match=r"--restore-step 10: .* is damaged \(the checksum .* steps 30, 20$"):
        rollback(Checkpoints(folder), 10, "abc")
    assert newest(folder) == 30


def test_a_step_that_does_not_say_what_it_is_counts_as_damaged_and_not_as_missing(folder: Path) -> None:
    (folder / manifest.name(10, 2) / manifest.META).write_text("{")
    with pytest.raises(
        RestoreUnrecoverable, match=r"--restore-step 10: .*0010.g2 is damaged \(meta.json .* steps 30, 20$"
    ):
        rollback(Checkpoints(folder), 10, "abc")


def test_a_step_that_a_disk_withholds_may_be_gone_back_to_at_another_start(folder: Path) -> None:
    meta = folder / manifest.name(10, 2) / manifest.META
    meta.unlink()
    meta.symlink_to("/proc/self/mem")  # The kernel gives an error of the disk for its first page.
    with pytest.raises(CheckpointError, match=r"--restore-step 10: .* is damaged \(meta.json cannot be read") as raised:
        rollback(Checkpoints(folder), 10, "abc")
    assert not isinstance(raised.value, RestoreUnrecoverable)


def test_a_rollback_that_was_killed_before_its_note_is_done_again(folder: Path) -> None:
    rollback(Checkpoints(folder), 20, "abc")
    (folder / RECORD).unlink()
    Checkpoints(folder, generation=2).save(30, value=30)
    rollback(Checkpoints(folder), 20, "abc")
    assert newest(folder) == 20


def test_a_damaged_note_is_an_error_that_names_the_file(folder: Path) -> None:
    (folder / RECORD).write_bytes(b"{")
    with pytest.raises(CheckpointError, match=r"rollback.json is damaged"):
        rollback(Checkpoints(folder), 20, "abc")


def test_a_note_that_cannot_be_read_is_an_error_that_names_the_folder(folder: Path) -> None:
    (folder / RECORD).mkdir()
    with pytest.raises(CheckpointError, match=r"reading the record of the last rollback in .* failed"):
        rolled_back(folder)


def test_what_another_try_may_still_read_is_not_hopeless(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / manifest.name(10, 2) / "value.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(RestoreUnrecoverable, match="is damaged"):
        rollback(Checkpoints(folder), 10, "abc")

    def withheld(*_: object) -> None:
        raise CheckpointDamaged("value.pt cannot be read", transient=True)

    monkeypatch.setattr(Checkpoints, "verify", withheld)
    with pytest.raises(CheckpointError, match="is damaged") as raised:
        rollback(Checkpoints(folder), 10, "abc")
    assert not isinstance(raised.value, RestoreUnrecoverable)


def test_of_many_steps_an_error_names_the_newest_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.train.restore.restore_step.STEPS_NAMED_MAX", 2)
    with pytest.raises(RestoreUnrecoverable, match=r"has steps 30, 20 and older ones$"):
        rollback(Checkpoints(folder), 15, "abc")
    monkeypatch.setattr("elastic.train.restore.restore_step.STEPS_NAMED_MAX", 3)
    with pytest.raises(RestoreUnrecoverable, match=r"has steps 30, 20, 10$"):
        rollback(Checkpoints(folder), 15, "abc")


def test_nothing_is_renamed_before_the_folder_is_this_generations_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def another_node_claims(_: float) -> None:
        assert aside(folder) == []
        fence.claim(folder, "abc/8")

    monkeypatch.setattr(time, "sleep", another_node_claims)
    rollback(Checkpoints(folder, generation=8, mark="abc/8"), 10, "abc")
    fence.check(folder, "abc/8")
    assert len(aside(folder)) == 2


def test_a_worker_of_an_old_world_cannot_go_back(folder: Path) -> None:
    fence.claim(folder, "abc/8")
    with pytest.raises(CheckpointFenced):
        rollback(Checkpoints(folder, generation=7, mark="abc/7"), 10, "abc")


def test_a_checkpoint_that_only_an_old_world_wrote_cannot_be_gone_back_to(folder: Path) -> None:
    fence.claim(folder, "abc/1")
    fence.claim(folder, "abc/2")
    meta = manifest.CheckpointMeta(step=5, generation=1, mark="abc/1", parts={}, at=0.0)
    (folder / manifest.name(5, 1)).mkdir()
    (folder / manifest.name(5, 1) / manifest.META).write_bytes(msgspec.json.encode(meta))
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        rollback(Checkpoints(folder, generation=2, mark="abc/2"), 5, "abc")


@pytest.mark.parametrize(
    ("environ", "mark"),
    [
        ({}, ""),
        ({"ELASTIC_FENCE": "abc/7"}, "abc/1"),
        ({"ELASTIC_FENCE": "abc/7", "TORCHELASTIC_RUN_ID": "j1"}, "abc/1"),
        ({"ELASTIC_FENCE": "abc/9", "ELASTIC_RUN": "2"}, "abc/2"),
        ({"TORCHELASTIC_RUN_ID": "j1"}, "torchrun:j1"),
        ({"TORCHELASTIC_RUN_ID": "none"}, ""),
    ],
)
def test_a_run_is_named_by_who_started_it(environ: dict[str, str], mark: str) -> None:
    assert run_mark(environ) == mark
