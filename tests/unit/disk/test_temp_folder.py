"""Whose temporary folders are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elastic._disk import temp_folder
from elastic.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, for this test."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_in_use_stays_and_one_that_nobody_locks_goes(folder: Path) -> None:
    used = temp_folder.TempFolder(temp_folder.ETCD)
    free = folder / "elastic-etcd-free"
    (free / "data").mkdir(parents=True)
    (free / "lock").touch()
    temp_folder.remove_left_behind(temp_folder.ETCD)
    assert list(folder.iterdir()) == [used.path]
    used.remove()
    assert not list(folder.iterdir())


def test_a_folder_without_a_lock_file_goes_when_nothing_in_it_was_written_for_a_day(folder: Path) -> None:
    past = time.time() - 25 * 3600
    for name, ages in {"new": False, "busy": False, "old": True}.items():
        path = folder / f"elastic-etcd-{name}" / "wal"
        path.mkdir(parents=True)
        if ages:
            os.utime(path, (past, past))
        if name != "new":
            os.utime(path.parent, (past, past))
    temp_folder.remove_left_behind(temp_folder.ETCD)
    assert {path.name for path in folder.iterdir()} == {"elastic-etcd-new", "elastic-etcd-busy"}


def test_other_files_and_links_stay(folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "lock").touch()
    (folder / "elastic-etcd-link").symlink_to(other)
    (folder / "elastic-etcd-file").touch()
    temp_folder.remove_left_behind(temp_folder.ETCD)
    assert len(list(folder.iterdir())) == 3
    assert (other / "lock").exists()


def test_an_agent_that_was_killed_leaves_a_folder_that_the_next_one_removes(folder: Path) -> None:
    (folder / "elastic-node-killed").mkdir()
    (folder / "elastic-node-killed" / "lock").touch()
    (folder / "elastic-etcd-other").mkdir()
    temp_folder.remove_left_behind(temp_folder.NODE)
    assert [path.name for path in folder.iterdir()] == ["elastic-etcd-other"]


def test_a_folder_that_cannot_be_made_is_told_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    with pytest.raises(ConfigError, match=r"in /proc/nowhere \(No such file or directory\); .* set TMPDIR"):
        temp_folder.TempFolder(temp_folder.NODE)
