"""What another local user can do to the locks of a log folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.logs.log_dir import LOCK, log_folder
from launcher.logs.shared_file import SharedLog
from tests.support.job_harness import Job, story
from tests.support.other_user import LOCKER, NOBODY, needs_root, seen_by_all, stranger

pytestmark = needs_root


@pytest.fixture
def folder() -> Iterator[Path]:
    with seen_by_all() as made:
        yield made


def left_by_an_older_version(path: Path) -> None:
    path.touch()
    path.chmod(0o644)


def test_another_user_cannot_open_the_locks_of_a_folder(folder: Path) -> None:
    with log_folder(folder, job="j1", below="j1"):
        for name in (LOCK, ".agents.j1.lock"):
            with stranger(LOCKER, str(folder / name), "LOCK_EX") as said:
                assert said == "Permission denied"


def test_a_lock_of_an_older_version_is_closed_to_other_users(folder: Path) -> None:
    left_by_an_older_version(folder / LOCK)
    with log_folder(folder), stranger(LOCKER, str(folder / LOCK), "LOCK_SH") as said:
        assert said == "Permission denied"


@pytest.mark.parametrize("name", [LOCK, ".agents.j1.lock"])
def test_a_lock_that_another_user_holds_stops_no_agent_and_a_line_says_so(folder: Path, name: str) -> None:
    left_by_an_older_version(folder / name)
    (folder / "workerlog.0").write_text("precious\n")
    with stranger(LOCKER, str(folder / name), "LOCK_EX") as said:
        assert said == "locked"
        with log_folder(folder, job="j1", below="j1") as held:
            assert held.path == folder
            assert held.unlocked.startswith(f"cannot lock {folder / name} (another process holds it")
    with log_folder(folder, job="j1", below="j1") as later:
        assert later.unlocked == ""


def test_logs_are_not_begun_anew_while_another_user_holds_the_lock(folder: Path) -> None:
    left_by_an_older_version(folder / LOCK)
    (folder / "workerlog.0").write_text("precious\n")
    with stranger(LOCKER, str(folder / LOCK), "LOCK_EX"), log_folder(folder, overwrite=True) as held:
        assert held.note.endswith("so its logs are appended to")
        assert held.unlocked
    assert (folder / "workerlog.0").read_text() == "precious\n"


def seen_by_another_user(folder: Path) -> None:
    """Become another user, and print what his agents of jobs j1 and j2 find; in a process that ends after it."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    with log_folder(folder, job="j1", below="j1") as same, log_folder(folder, job="j2", below="j2") as other:
        print(same.path, same.unlocked, other.path, other.moved, sep="\n", flush=True)


def test_agents_of_two_users_share_a_folder_and_each_job_has_its_own(folder: Path) -> None:
    folder.chmod(0o777)
    with log_folder(folder, job="j1", below="j1"):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.dup2(write, 1)
            try:
                with os.fdopen(1, "w", closefd=False) as sys.stdout:
                    seen_by_another_user(folder)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            same, unlocked, other, moved = said.read().splitlines()
        os.waitpid(pid, 0)
    assert same == str(folder)
    assert unlocked.startswith(f"cannot lock {folder / LOCK} (it belongs to another user)")
    assert other == str(folder / "j2")
    assert moved.startswith(f"{folder} has the lock of a job (j1) of another user; this job writes to {other}")


def test_a_shared_log_that_another_user_locks_is_bounded_all_the_same(folder: Path) -> None:
    path = folder / "launcher.log"
    log = SharedLog(path)
    log.append(b"first\n")
    with stranger(LOCKER, str(path), "LOCK_SH") as said:
        assert said == "locked"
        for _ in range(12):
            log.append(b"x" * (1 << 20) + b"\n")
        assert path.stat().st_size < 10 << 20
        assert log.full.read_bytes().startswith(b"first\n")


@story
async def test_a_job_starts_beside_a_stranger_who_holds_the_lock_of_its_log_folder(job: Job) -> None:
    with seen_by_all() as folder:
        left_by_an_older_version(folder / LOCK)
        with stranger(LOCKER, str(folder / LOCK), "LOCK_EX") as said:
            assert said == "locked"
            node = await job.node("--np", "1", "--log-dir", str(folder))
            await node.says(r"cannot lock .*\.agents\.lock \(another process holds it")
            (worker,) = await job.world(1, 1)
            await worker.exits(0)
            assert await node.exits() == 0
