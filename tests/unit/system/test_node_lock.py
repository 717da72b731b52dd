"""What a lock file proves."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.system import node_lock


def test_a_missing_file_proves_nothing(tmp_path: Path) -> None:
    assert not node_lock.proven_dead(tmp_path / "n.lock")


def test_a_file_of_another_boot_or_machine_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "n.lock").write_text("another-boot\n")
    assert not node_lock.proven_dead(tmp_path / "n.lock")
    (tmp_path / "n.lock").write_text("")
    assert not node_lock.proven_dead(tmp_path / "n.lock")


def test_a_held_lock_proves_nothing_and_a_free_one_the_death(tmp_path: Path) -> None:
    path = tmp_path / "n.lock"
    held = node_lock.hold(path)
    assert not node_lock.proven_dead(path)
    os.close(held.fd)
    assert node_lock.proven_dead(path)
    assert node_lock.proven_dead(path)
    again = node_lock.hold(path)
    assert not node_lock.proven_dead(path)
    os.close(again.fd)


def test_a_lock_is_held_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lock, "HOLD_LIMIT_S", 0.05)
    held = node_lock.hold(tmp_path / "n.lock")
    with pytest.raises(BlockingIOError):
        node_lock.hold(tmp_path / "n.lock")
    os.close(held.fd)


def test_of_free_locks_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lock, "FREE_MAX", 3)
    for number in range(6):
        path = tmp_path / f"{number}.lock"
        held = node_lock.hold(path)
        os.utime(path, (number, time.time() - 100 + number))
        os.close(held.fd)
    os.close(node_lock.hold(tmp_path / "new.lock").fd)
    assert sorted(path.name for path in tmp_path.glob("*.lock")) == ["4.lock", "5.lock", "new.lock"]


def test_free_locks_of_long_ago_are_removed_and_held_ones_stay(tmp_path: Path) -> None:
    for name in ("free", "held"):
        lock = node_lock.hold(tmp_path / f"{name}.lock")
        os.utime(lock.path, (0, 0))
        if name == "free":
            os.close(lock.fd)
    new = node_lock.hold(tmp_path / "new.lock")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held.lock", "new.lock"]
    os.close(lock.fd)
    os.close(new.fd)


def test_the_folder_is_this_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = node_lock.lock_path("j1", "10.0.0.5-ab12")
    assert path == tmp_path / f"elastic-launch-{os.getuid()}" / "j1.10.0.0.5-ab12.lock"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="only you can write"):
        node_lock.lock_path("j1", "n")
    path.parent.rmdir()
    path.parent.symlink_to(tmp_path)
    with pytest.raises(ConfigError):
        node_lock.lock_path("j1", "n")


def test_a_process_keeps_to_the_folder_that_it_chose_first(tmp_path: Path) -> None:
    first, second = (node_lock.LockLocation(str(tmp_path), name) for name in ("first", "second"))
    first.path.touch()
    assert node_lock._choose((first, second)).path == second.path
    first.path.unlink()
    assert node_lock._choose((first, second)).path == second.path


@pytest.mark.parametrize(
    ("unfit", "why"),
    [
        (
            node_lock.LockLocation("/proc/nowhere", "locks"),
            "/proc/nowhere/locks cannot be created (No such file or directory)",
        ),
        (node_lock.LockLocation("/proc/self", "fd"), "/proc/self/fd cannot be used (No such file or directory)"),
        (node_lock.LockLocation("/tmp", "locks", private=True), "/tmp is not a directory that only you can write"),
        (
            node_lock.LockLocation("/nowhere", "locks", private=True),
            "/nowhere/locks cannot be used (No such file or directory)",
        ),
    ],
)
def test_the_first_place_that_can_have_locks_is_chosen_and_why_no_other(
    tmp_path: Path, unfit: node_lock.LockLocation, why: str
) -> None:
    usual = node_lock.LockLocation(str(tmp_path), "locks")
    assert node_lock._choose((usual, unfit)) == (usual.path, "")
    assert node_lock._choose((unfit, usual)) == (usual.path, f"{why}; the locks of nodes are in {usual.path}")
    with pytest.raises(ConfigError) as caught:
        node_lock._choose((unfit, unfit))
    assert str(caught.value) == f"{why}; {why}; {node_lock.FIX}"


def test_the_runtime_folder_of_a_login_is_a_place_only_if_it_is_a_whole_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    assert node_lock.LockLocation("/run/user/1", "elastic-launch", private=True) in node_lock.places()
    for name in ("", "user"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        assert [place.base for place in node_lock.places()][1] == "/dev/shm"


def test_the_nodes_of_a_job_that_run_here_are_those_whose_lock_is_held(tmp_path: Path) -> None:
    held = [
        node_lock.hold(node_lock.lock_path(job, node, tmp_path)) for job, node in (("j1", "h-0001"), ("j10", "h-0002"))
    ]
    gone = node_lock.hold(node_lock.lock_path("j1", "h-0003", tmp_path))
    os.close(gone.fd)
    assert node_lock.held("j1", tmp_path) == ("h-0001",)
    assert node_lock.held("j10", tmp_path) == ("h-0002",)
    assert node_lock.held("j", tmp_path) == ()
    for one in held:
        os.close(one.fd)


def test_what_cannot_be_read_proves_nothing(tmp_path: Path) -> None:
    assert not node_lock.proven_dead(tmp_path), "a folder in the place of the file"
