"""Whether a folder is the one that rank 0 has."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from elastic.errors import CheckpointError
from elastic.train.checkpoint import Checkpoints
from elastic.train.checkpoint.shared_folder import not_shared, remove_token, sees_token, write_token


def test_a_shared_folder_shows_the_token_and_another_does_not(tmp_path: Path) -> None:
    token = write_token(tmp_path / "folder")
    assert sees_token(tmp_path / "folder", token)
    assert not sees_token(tmp_path / "other", token)
    assert not sees_token(tmp_path / "folder", "0" * 16)


def test_the_token_is_no_checkpoint_and_can_be_removed(tmp_path: Path) -> None:
    token = write_token(tmp_path)
    assert Checkpoints(tmp_path, mark="").load() is None
    remove_token(tmp_path, token)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_names_the_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="a part of that path is a file; use another --checkpoint-dir"):
        write_token(tmp_path / "file")


def test_a_full_disk_keeps_no_empty_token(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="no space left"):
            write_token(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_the_line_names_hosts_folders_and_the_mend_and_each_folder_once() -> None:
    line = not_shared("a", Path("/x"), [("b", "/x"), ("b", "/x"), ("c", "/y")])
    assert line == (
        "the checkpoint directory is not shared: files that a writes to /x are missing in /x on b, /y on c; "
        "use a --checkpoint-dir that every node can read and write, otherwise a node failure deletes checkpoints"
    )
