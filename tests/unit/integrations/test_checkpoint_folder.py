"""A folder of a framework's checkpoints: whole or absent, and only the newest generation's count."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.errors import CheckpointError
from elastic.integrations.checkpoint_folder import META, CheckpointFolder
from elastic.train.comm import byte_collectives
from elastic.train.process_group.topology import Topology

ALONE = Topology(0, 1, 0, 1)


def folder_of(path: Path, monkeypatch: pytest.MonkeyPatch, mark: str = "") -> CheckpointFolder:
    monkeypatch.setenv("ELASTIC_FENCE", mark)
    return CheckpointFolder(path, ALONE, setting="output_dir")


def save(folder: CheckpointFolder, step: int, text: str = "weights") -> Path:
    def write(staged: Path) -> None:
        (staged / "sub").mkdir()
        (staged / "sub" / "model").write_text(text)

    return folder.save(f"checkpoint-{step}", step, write)


@pytest.mark.parametrize("mark", ["", "job/1"])
def test_the_newest_that_was_published_is_found_by_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    folder = folder_of(tmp_path, monkeypatch, mark)
    assert folder.newest() is None
    for step in (9, 100, 20):
        save(folder, step)
    assert folder.newest() == (100, tmp_path / "checkpoint-100")
    assert (tmp_path / "checkpoint-9" / "sub" / "model").read_text() == "weights"


def test_a_checkpoint_that_the_framework_wrote_alone_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, monkeypatch)
    save(folder, 3)
    (tmp_path / "checkpoint-7").mkdir()
    (tmp_path / "checkpoint-8").mkdir()
    (tmp_path / "checkpoint-8" / META).write_text("{")
    assert folder.newest() == (3, tmp_path / "checkpoint-3")


def test_a_second_save_of_one_name_replaces_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path, monkeypatch)
    save(folder, 3, "old")
    assert (save(folder, 3, "new") / "sub" / "model").read_text() == "new"


def test_a_write_that_fails_leaves_nothing_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, monkeypatch)
    save(folder, 3)

    def fails(staged: Path) -> None:
        (staged / "model").write_text("half")
        raise RuntimeError("out of luck")

    with pytest.raises(CheckpointError, match="saving checkpoint-4 failed on rank 0: RuntimeError: out of luck"):
        folder.save("checkpoint-4", 4, fails)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3"]


def test_the_next_generation_reads_what_the_one_before_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder_of(tmp_path, monkeypatch, "job/1"), 3)
    assert folder_of(tmp_path, monkeypatch, "job/2").newest() == (3, tmp_path / "checkpoint-3")
    assert folder_of(tmp_path, monkeypatch, "").newest() == (3, tmp_path / "checkpoint-3")


def test_an_older_generation_can_no_longer_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = folder_of(tmp_path, monkeypatch, "job/1")
    folder_of(tmp_path, monkeypatch, "job/2")
    with pytest.raises(CheckpointError, match="this worker is of generation job/1 and may not write there"):
        save(old, 3)
    with pytest.raises(CheckpointError, match="which is newer than"):
        folder_of(tmp_path, monkeypatch, "job/1")


def test_what_an_older_generation_publishes_too_late_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last check was before the claim of the next generation, and its rename comes after it."""
    old = folder_of(tmp_path, monkeypatch, "job/1")
    save(old, 3)
    new = folder_of(tmp_path, monkeypatch, "job/2")
    monkeypatch.setattr(old, "_check", lambda: None)
    save(old, 4)
    assert new.newest() == (3, tmp_path / "checkpoint-3")
    save(new, 4)
    assert new.newest() == (4, tmp_path / "checkpoint-4")


def test_another_job_that_takes_the_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = folder_of(tmp_path, monkeypatch, "first/1")
    folder_of(tmp_path, monkeypatch, "second/1")
    with pytest.raises(
        CheckpointError, match=r"another job \(second/1\) has claimed .*use a separate output_dir for each job"
    ):
        save(old, 3)


def test_a_folder_that_cannot_be_made_is_named_with_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="use another output_dir"):
        folder_of(tmp_path / "file" / "below", monkeypatch, "job/1")


def test_a_folder_that_a_rank_does_not_see_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path, monkeypatch)
    monkeypatch.setattr(byte_collectives, "gather", lambda data, group: [data, b"10.0.0.7:/data"])
    with pytest.raises(CheckpointError, match="what rank 0 writes there is not visible in 10"):
        folder._require_shared(tmp_path)
