"""A log folder that several agents may share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher import cli
from launcher.config.parse import parse
from launcher.logs.log_dir import log_folder
from tests.support import full_on_close
from tests.support.reserved_ports import entered

OURS = (
    *("workerlog.0", "workerlog.12", "serverlog.1", "heterlog.0", "envlog.3", "envlog.server.0", "endpoints.log"),
    *("endpoints.7.log", "launcher.log", "events.jsonl", "events.1.jsonl", "launcher.1.log", "workerlog.3.1"),
)
NOT_OURS = ("workerlog.0.gz", "workerlog.old", "train.log", "endpoints.txt", "events.json", "notes.md")


def fill(folder: Path) -> None:
    for name in (*OURS, *NOT_OURS):
        (folder / name).write_text("old")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def test_logs_are_kept_unless_asked(tmp_path: Path) -> None:
    fill(tmp_path)
    with log_folder(tmp_path) as folder:
        assert folder.note == ""
        assert names(tmp_path) == {*OURS, *NOT_OURS}


def test_logs_are_begun_anew_and_nothing_else_is_touched(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "sub").mkdir()
    with log_folder(tmp_path, overwrite=True) as folder:
        assert folder.note == ""
        assert names(tmp_path) == {*NOT_OURS, "sub"}


@pytest.mark.parametrize("first_overwrites", [False, True])
def test_the_logs_of_an_agent_that_writes_there_are_kept(tmp_path: Path, first_overwrites: bool) -> None:
    with log_folder(tmp_path, overwrite=first_overwrites):
        fill(tmp_path)
        with log_folder(tmp_path, overwrite=True) as second:
            assert second.note == (
                f"--log-overwrite: another agent writes into {tmp_path}, so its logs are appended to"
            )
        assert names(tmp_path) == {*OURS, *NOT_OURS}
    with log_folder(tmp_path, overwrite=True) as third:
        assert third.note == ""
    assert names(tmp_path) == set(NOT_OURS)


def test_a_folder_that_cannot_be_is_an_error_with_its_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="choose a writable directory with --log-dir"):
        entered(log_folder(tmp_path / "file"))


def test_a_log_that_cannot_be_deleted_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "workerlog.0").mkdir()
    with pytest.raises(
        ConfigError, match=r"--log-overwrite cannot delete .*/workerlog\.0 .*; choose another --log-dir"
    ):
        entered(log_folder(tmp_path, overwrite=True))


def test_the_agents_of_one_job_share_a_folder_and_leave_no_lock_of_it(tmp_path: Path) -> None:
    with log_folder(tmp_path, job="j1", below="j1") as one, log_folder(tmp_path, job="j1", below="j1") as other:
        assert (one.path, other.path, one.moved + other.moved) == (tmp_path, tmp_path, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".agents.lock"]


def test_another_job_has_a_folder_of_its_own_below_and_says_so_until_the_first_is_gone(tmp_path: Path) -> None:
    with log_folder(tmp_path, job="j1", below="j1"):
        for _ in range(2):
            with log_folder(tmp_path, job="j10", below="j10") as other:
                assert other.path == tmp_path / "j10"
                assert other.moved == (
                    f"another job (j1) writes its logs into {tmp_path}; this job writes to {tmp_path}/j10 "
                    "(choose another directory with --log-dir)"
                )
    with log_folder(tmp_path, job="j10", below="j10") as alone:
        assert (alone.path, alone.moved) == (tmp_path, "")


def test_jobs_of_one_name_in_different_stores_share_no_folder(tmp_path: Path) -> None:
    with (
        log_folder(tmp_path, job="j1@2379", below="j1") as first,
        log_folder(tmp_path, job="j1@4001", below="j1") as second,
        log_folder(tmp_path, job="j1@4002", below="j1") as third,
    ):
        assert [first.path, second.path, third.path] == [tmp_path, tmp_path / "j1", tmp_path / "j1" / "j1"]
        assert "(j1)" in third.moved


@pytest.mark.parametrize(
    ("server", "flags", "known_as"),
    [
        ("127.0.0.1:2379", "", "j1@2379"),
        ("127.0.0.1:12379", "--ips 192.168.0.1,192.168.0.2", "j1"),
        ("192.168.0.1:12379", "--ips 192.168.0.1,192.168.0.2", "j1"),
    ],
)
def test_the_host_that_serves_etcd_is_of_the_same_job_as_the_others(server: str, flags: str, known_as: str) -> None:
    config = parse(["--elastic-server", server, "--job-id", "j1", *flags.split(), "train.py"], {})
    assert cli._job(config) == known_as


def test_the_lock_of_a_job_that_was_killed_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / ".agents.dead.lock").touch()
    with log_folder(tmp_path, job="j1", below="j1") as folder:
        assert folder.path == tmp_path
    assert sorted(path.name for path in tmp_path.iterdir()) == [".agents.lock"]


def test_a_disk_that_refuses_to_close_locks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "close", full_on_close.refuses("/.agents."))
    with log_folder(tmp_path, job="j1@2379", below="j1"), log_folder(tmp_path, job="j2@2379", below="j2") as second:
        assert second.path == tmp_path / "j2"
        assert second.moved.startswith("another job (j1) writes its logs")
