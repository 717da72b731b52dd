"""The log of one worker has a bound and keeps its frame, its first lines and its newest ones."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest

from launcher.workerlog import HEAD_BYTES, WorkerLog
from tests import closing

CLOSING = b"==== rank 0 gen 1 ended: exit 0 ====\n"
HEADER = "==== elastic-launch job j gen 1 rank 0 ===="
BOUND = 1 << 20


def log_of(path: Path, bytes_max: int | None = BOUND) -> WorkerLog:
    return WorkerLog(path, HEADER, pytest.fail, bytes_max)


def number(count: int) -> bytes:
    return f"line {count:010}\n".encode()


def test_a_log_never_takes_more_than_its_bound_however_much_is_written(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    for start in range(0, 200_000, 1000):
        log.write(b"".join(map(number, range(start, start + 1000))))
        assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= BOUND
    log.line("==== rank 0 gen 1 ended: exit 0 ====")
    log.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["workerlog.0", "workerlog.0.1"]


def test_each_file_has_the_header_the_first_lines_what_is_left_out_and_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    for start in range(0, 200_000, 100):
        log.write(b"".join(map(number, range(start, start + 100))))
    log.line("==== rank 0 gen 1 ended: exit 0 ====")
    log.close()
    for name, newest in (("workerlog.0", 199_999), ("workerlog.0.1", None)):
        lines = (tmp_path / name).read_text().splitlines()
        assert lines[:2] == [HEADER, number(0).decode().rstrip()]
        (gap,) = (at for at, line in enumerate(lines) if "are left out here" in line)
        before = [int(line.split()[1]) for line in lines[1:gap]]
        after = [int(line.split()[1]) for line in lines[gap + 1 :] if line.startswith("line")]
        assert before == list(range(len(before)))
        assert after == list(range(after[0], after[-1] + 1))
        assert lines[gap].startswith(f"==== {(after[0] - before[-1] - 1) * len(number(0))} bytes of this start")
        assert newest is None or after[-1] == newest
    assert path.read_bytes().endswith(number(199_997) + number(199_998) + number(199_999) + CLOSING)


def test_the_end_of_a_log_can_be_read_whenever_it_was_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    for count in range(0, 40_000, 1000):
        log.write(b"".join(map(number, range(count, count + 1000))))
        assert path.read_bytes().endswith(b"".join(map(number, range(count + 980, count + 1000))))
    log.close()


def test_a_short_start_after_a_long_one_is_carried_over_whole(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    log.write(b"x" * (BOUND // 2 - 200))
    log.close()
    again = log_of(path)
    again.write(number(1) * 3)
    again.write(b"y" * 100)
    again.close()
    assert path.read_bytes() == HEADER.encode() + b"\n" + number(1) * 3 + b"y" * 100
    assert (tmp_path / "workerlog.0.1").read_bytes().startswith(HEADER.encode() + b"\nxxx")


def test_an_endless_line_is_cut_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    for _ in range(100):
        log.write(b"x" * 50_000)
    log.line("==== rank 0 gen 1 ended: exit 0 ====")
    log.close()
    header, head, gap, rest, closing = path.read_text().splitlines()
    assert (header, head.strip("x"), rest.strip("x")) == (HEADER, "", "")
    assert (len(head), closing) == (HEAD_BYTES, "==== rank 0 gen 1 ended: exit 0 ====")
    assert gap.startswith("==== ")
    assert len(rest) >= BOUND // 8


def test_a_log_without_a_bound_grows(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path, None)
    for _ in range(30):
        log.write(b"x" * 100_000)
    log.close()
    assert path.stat().st_size > 3_000_000
    assert len(list(tmp_path.iterdir())) == 1


def test_a_log_that_somebody_has_taken_away_is_begun_anew_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    log.write(b"x" * (BOUND // 2 - 100))
    path.unlink()
    log.write(b"y" * 100)
    log.close()
    assert path.read_bytes().startswith(HEADER.encode() + b"\n")
    assert not (tmp_path / "workerlog.0.1").exists()


def test_what_no_disk_takes_is_told_once_and_the_log_says_how_much_is_missing(tmp_path: Path) -> None:
    """A limit of the size of files stands for a disk that is full, and then has room again."""
    told: list[str] = []
    path = tmp_path / "workerlog.0"
    log = WorkerLog(path, HEADER, told.append, BOUND)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for _ in range(100):
            log.write(b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.line("==== rank 0 gen 1 ended: exit 0 ====")
    log.close()
    missing = 100 * 100 - (1000 - len(HEADER) - 1)
    lines = path.read_text().splitlines()
    assert lines[2:] == [
        f"==== {missing} bytes are missing here: File too large ====",
        "==== rank 0 gen 1 ended: exit 0 ====",
    ]
    assert told == [f"{path} cannot be written (File too large); what its worker says is not kept"]


def test_a_folder_in_which_nothing_can_be_renamed_costs_the_text_and_nothing_else(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "workerlog.0"
    (tmp_path / "workerlog.0.1").mkdir()
    log = WorkerLog(path, HEADER, told.append, BOUND)
    for _ in range(30):
        log.write(b"x" * 100_000)
    log.close()
    assert path.stat().st_size <= BOUND // 2
    assert told == [f"{path} cannot be written (Is a directory); what its worker says is not kept"]


def test_what_never_came_is_counted_in_front_of_the_next_line_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    log.write(b"one\ntw")
    log.miss(7, "the disk stood still")
    log.write(b"four\n")
    log.miss(0, "")
    log.miss(3, "the disk stood still")
    log.close()
    assert path.read_text().splitlines() == [
        *(HEADER, "one", "tw", "==== 7 bytes are missing here: the disk stood still ====", "four"),
        "==== 3 bytes are missing here: the disk stood still ====",
    ]


def test_a_disk_that_says_at_the_end_that_it_has_no_room_is_told_once_and_no_other_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a file that was closed may be another one's by then."""
    monkeypatch.setattr(os, "close", closing.refuses("/workerlog."))
    told: list[str] = []
    path = tmp_path / "workerlog.0"
    before = os.listdir("/proc/self/fd")
    log = WorkerLog(path, HEADER, told.append, BOUND)
    for count in range(0, 100_000, 1000):
        log.write(b"".join(map(number, range(count, count + 1000))))
        assert path.read_bytes().endswith(number(count + 999)), "it goes on in the file that was begun"
    log.close()
    log.close()
    log.write(b"late")
    assert os.listdir("/proc/self/fd") == before
    assert told == [f"{path} cannot be written ({closing.WORDS}); what its worker says is not kept"]


def test_a_disk_that_does_not_know_its_file_any_more_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a network disk answers when its server came back with others."""

    def stale(fd: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    told: list[str] = []
    path = tmp_path / "workerlog.0"
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fstat", stale)
    log = WorkerLog(path, HEADER, told.append, BOUND)
    log.write(b"text")
    log.line("a line")
    log.close()
    monkeypatch.undo()
    assert os.listdir("/proc/self/fd") == before
    assert told == [f"{path} cannot be written ({os.strerror(errno.ESTALE)}); what its worker says is not kept"]
