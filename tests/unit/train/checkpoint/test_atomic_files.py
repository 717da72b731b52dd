"""Folders that are whole or not there: what is explained, removed, and left alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from elastic.errors import CheckpointError
from elastic.train.checkpoint import atomic_files


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "no space left (No space left on device); free some space, or use another --log-dir"),
        (errno.EROFS, " cannot write there "),
        (errno.ENOTDIR, "a part of that path is a file; use another --log-dir"),
        (errno.EIO, "failed: Input/output error; fix that, or use another --log-dir"),
    ],
)
def test_an_error_of_the_disk_is_said_with_its_place_and_its_mend(number: int, words: str) -> None:
    with (
        pytest.raises(CheckpointError, match=r"^saving step 5 in /folder on \S+ failed: ") as raised,
        atomic_files.as_checkpoint_error("saving step 5", Path("/folder"), "--log-dir"),
    ):
        raise OSError(number, os.strerror(number))
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("number", "transient"),
    [(errno.EIO, True), (errno.ESTALE, True), (errno.ENOSPC, True), (errno.EACCES, False), (errno.ENOENT, False)],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) and value > 1 else None,
)
def test_an_error_of_the_disk_may_be_gone_at_the_next_try_and_one_of_rights_or_names_is_not(
    number: int, transient: bool
) -> None:
    for converting in (
        atomic_files.as_checkpoint_error("saving", Path("/folder")),
        atomic_files.as_damage("meta.json"),
    ):
        with pytest.raises(CheckpointError) as raised, converting:
            raise OSError(number, os.strerror(number))
        assert raised.value.transient is transient


def test_an_error_without_words_of_the_system_keeps_its_own() -> None:
    assert "failed: odd; fix that" in atomic_files.explain(OSError("odd"), "saving", Path("/folder"))


def test_a_name_that_is_taken_is_left_to_whoever_has_it(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "theirs").touch()
    staged = atomic_files.staging(tmp_path, ".saving-")
    (staged / "ours").touch()
    assert not atomic_files.publish(staged, target)
    assert [path.name for path in target.iterdir()] == ["theirs"]
    assert (staged / "ours").exists()


def test_only_a_name_that_is_taken_is_no_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        atomic_files.publish(atomic_files.staging(tmp_path, ".saving-"), tmp_path / "gone" / "target")


def test_what_is_gone_can_be_removed_again(tmp_path: Path) -> None:
    atomic_files.discard(tmp_path / "gone")
    atomic_files.drop(tmp_path / "gone")
    assert list(tmp_path.iterdir()) == []


def test_what_is_removed_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    atomic_files.discard(folder)
    assert list(tmp_path.iterdir()) == []


def test_only_what_has_such_a_name_and_was_left_for_an_hour_is_swept(tmp_path: Path) -> None:
    names = [".saving-a", ".removed-b", "step-0000000001.g1", "aside-step-0000000002.g1", "fence"]
    for name in names:
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (1000, 1000))

    def left(now: float) -> list[str]:
        atomic_files.sweep(tmp_path, (".saving-", ".removed-"), now)
        return sorted(path.name for path in tmp_path.iterdir())

    assert left(1000 + atomic_files.STALE_S) == sorted(names)
    assert left(1001 + atomic_files.STALE_S) == sorted(names[2:])
