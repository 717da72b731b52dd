"""The fence of a checkpoint folder: who may write, and what counts."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from elastic.errors import CheckpointError, CheckpointFenced
from elastic.train.checkpoint import atomic_files, fence, manifest


def land(folder: Path, step: int, generation: int, mark: str) -> str:
    """Put a checkpoint there as a save's last step does, whoever owns the folder."""
    staged = atomic_files.staging(folder, ".saving-")
    meta = manifest.CheckpointMeta(step=step, generation=generation, mark=mark, parts={}, at=0.0)
    atomic_files.write(staged / manifest.META, msgspec.json.encode(meta))
    assert atomic_files.publish(staged, folder / manifest.name(step, generation))
    return manifest.name(step, generation)


def standing(folder: Path) -> fence.FenceClaim:
    claim = fence.current(folder)
    assert claim is not None
    return claim


def test_a_folder_that_was_claimed_takes_its_owner_and_refuses_everybody_else(tmp_path: Path) -> None:
    fence.claim(tmp_path / "new" / "folder", "abc/7")
    fence.check(tmp_path / "new" / "folder", "abc/7")
    with pytest.raises(CheckpointFenced, match=r"belongs to generation abc/7; this worker is of generation abc/6"):
        fence.check(tmp_path / "new" / "folder", "abc/6")


def test_a_folder_without_a_mark_refuses_a_worker_that_has_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFenced, match="no generation has claimed"):
        fence.check(tmp_path, "abc/1")


def test_a_newer_generation_and_another_incarnation_replace_the_mark(tmp_path: Path) -> None:
    for mark in ("abc/7", "abc/8", "xyz/1"):
        fence.claim(tmp_path, mark)
        fence.check(tmp_path, mark)


def test_a_job_that_another_one_took_the_folder_from_is_told_so_and_again_when_it_takes_it_back(tmp_path: Path) -> None:
    assert [fence.claim(tmp_path, mark) for mark in ("abc/7", "abc/8", "xyz/1", "xyz/2")] == ["", "", "", ""]
    with pytest.raises(CheckpointFenced, match=r"another job \(xyz/2\) has claimed .* a separate --checkpoint-dir"):
        fence.check(tmp_path, "abc/8")
    assert fence.claim(tmp_path, "abc/9") == "xyz/2"
    assert fence.claim(tmp_path, "abc/10") == ""


def test_a_claim_remembers_each_owner_once_the_newest_last(tmp_path: Path) -> None:
    for mark in ("abc/1", "xyz/1", "xyz/2", "abc/2"):
        fence.claim(tmp_path, mark)
    standing = fence.current(tmp_path)
    assert standing is not None
    assert standing.incarnations == ("xyz", "abc")


def test_claiming_twice_changes_nothing(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/7")
    name = land(tmp_path, 10, 7, "abc/7")
    fence.claim(tmp_path, "abc/7")
    assert [path.name for path in (tmp_path / "fence").iterdir()] == ["0000000001"]
    assert standing(tmp_path).accepts(name, "abc/7")


def test_an_agent_that_wakes_up_after_a_newer_claim_cannot_take_the_folder_back(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/8")
    with pytest.raises(CheckpointFenced, match="already belongs to generation abc/8, which is newer than abc/7"):
        fence.claim(tmp_path, "abc/7")
    fence.check(tmp_path, "abc/8")


def test_a_claim_frozen_just_before_its_rename_loses_to_the_newer_one(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/6")
    staged = atomic_files.staging(tmp_path / "fence", ".claim-")
    atomic_files.write(staged / fence.CLAIM, msgspec.json.encode(fence.FenceClaim("abc/7", (), ("abc",))))
    fence.claim(tmp_path, "abc/8")
    assert not atomic_files.publish(staged, tmp_path / "fence" / "0000000002")
    fence.check(tmp_path, "abc/8")


def test_a_claim_that_lands_on_a_pruned_number_does_not_count(tmp_path: Path) -> None:
    for g in range(1, 20):
        fence.claim(tmp_path, f"abc/{g}")
    staged = atomic_files.staging(tmp_path / "fence", ".claim-")
    atomic_files.write(staged / fence.CLAIM, msgspec.json.encode(fence.FenceClaim("abc/2", (), ("abc",))))
    assert atomic_files.publish(staged, tmp_path / "fence" / "0000000002")
    fence.check(tmp_path, "abc/19")


def test_what_was_there_at_the_claim_counts_and_so_does_what_its_owner_writes(tmp_path: Path) -> None:
    unfenced = land(tmp_path, 10, 0, "")
    fence.claim(tmp_path, "abc/7")
    mine = land(tmp_path, 20, 7, "abc/7")
    fence.claim(tmp_path, "abc/8")
    claim = standing(tmp_path)
    assert claim.accepted == (mine, unfenced)
    assert claim.accepts(manifest.name(30, 8), "abc/8")


def test_a_stray_of_an_older_world_never_counts_also_after_later_claims(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/6")
    fence.claim(tmp_path, "abc/7")
    stray = land(tmp_path, 30, 6, "abc/6")
    assert not standing(tmp_path).accepts(stray, "abc/6")
    for mark in ("abc/8", "xyz/1"):
        fence.claim(tmp_path, mark)
        assert not standing(tmp_path).accepts(stray, "abc/6")


def test_what_was_written_without_the_launcher_in_between_counts(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/7")
    plain = land(tmp_path, 40, 0, "")
    fence.claim(tmp_path, "abc/8")
    assert standing(tmp_path).accepted == (plain,)


def test_what_was_copied_here_from_another_job_counts(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/7")
    copied = land(tmp_path, 40, 3, "other/3")
    assert standing(tmp_path).accepts(copied, "other/3")
    fence.claim(tmp_path, "abc/8")
    assert standing(tmp_path).accepted == (copied,)


def test_of_many_claims_at_once_the_highest_generation_stands_at_the_end(tmp_path: Path) -> None:
    def attempt(g: int) -> bool:
        try:
            fence.claim(tmp_path, f"abc/{g}")
        except CheckpointFenced:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(1, 9)))
    assert results[-1]
    fence.check(tmp_path, "abc/8")


def test_only_the_last_claims_stay_on_disk(tmp_path: Path) -> None:
    for g in range(1, 3 * fence.CLAIMS_KEPT):
        fence.claim(tmp_path, f"abc/{g}")
    left = sorted(path.name for path in (tmp_path / "fence").iterdir())
    assert len(left) == fence.CLAIMS_KEPT
    assert left[-1] == f"{3 * fence.CLAIMS_KEPT - 1:010d}"


def test_a_damaged_mark_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/7")
    (tmp_path / "fence" / "0000000001" / fence.CLAIM).write_bytes(b"\0\0")
    with pytest.raises(CheckpointError, match=r"claim\.json is damaged \(JSON .* remove .*fence"):
        fence.claim(tmp_path, "abc/8")


def test_a_claim_without_its_file_is_looked_for_again_and_then_an_error_that_names_it(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/7")
    (tmp_path / "fence" / "0000000002").mkdir()
    with pytest.raises(CheckpointError, match=r"0000000002/claim\.json is damaged \(it has no claim\.json\); remove"):
        fence.current(tmp_path)


def test_a_claim_that_loses_every_race_gives_up_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic_files, "publish", lambda staged, target: False)
    with pytest.raises(CheckpointError, match=r"claiming .* for abc/7 failed: others claimed it 16 times meanwhile"):
        fence.claim(tmp_path, "abc/7")
    assert list((tmp_path / "fence").iterdir()) == []


def test_of_what_is_damaged_a_claim_goes_on_listing_what_counted_before(tmp_path: Path) -> None:
    listed = land(tmp_path, 10, 0, "")
    fence.claim(tmp_path, "abc/7")
    unlisted = land(tmp_path, 20, 7, "abc/7")
    for name in (listed, unlisted):
        (tmp_path / name / manifest.META).write_bytes(b"")
    fence.claim(tmp_path, "abc/8")
    assert standing(tmp_path).accepted == (listed,)


def test_leftovers_of_a_claim_that_was_killed_are_removed_when_old(tmp_path: Path) -> None:
    fence.claim(tmp_path, "abc/7")
    old = atomic_files.staging(tmp_path / "fence", ".claim-")
    new = atomic_files.staging(tmp_path / "fence", ".claim-")
    os.utime(old, (0, 0))
    fence.claim(tmp_path, "abc/8")
    assert (old.exists(), new.exists()) == (False, True)


def test_a_path_through_a_file_is_an_error_that_names_the_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    said = r"^claiming the checkpoint directory in .*folder on .* is a file; use another --checkpoint-dir"
    with pytest.raises(CheckpointError, match=said):
        fence.claim(tmp_path / "file" / "folder", "abc/1")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_read_only_folder_is_an_error_that_names_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(CheckpointError, match=r"user \d+ cannot write there .* another --checkpoint-dir"):
        fence.claim(tmp_path / "folder", "abc/1")


@pytest.mark.parametrize("mark", ["", "abc", "abc/", "/7", "abc/x", "a/b/7"])
def test_a_mark_that_is_none_is_a_programming_error(tmp_path: Path, mark: str) -> None:
    with pytest.raises(ValueError, match="is not a fencing token"):
        fence.claim(tmp_path, mark)
