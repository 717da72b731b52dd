"""The log of one worker has a bound and keeps its frame, its first lines and its newest ones."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
from pathlib import Path

import pytest

from launcher.logs.rotating_file import HEAD_BYTES, RotatingFile
from launcher.logs.writer_protocol import LogLimits
from tests.support import full_on_close

CLOSING = b"==== rank 0 gen 1 ended: exit 0 ====\n"
HEADER = "==== elastic-launch job j gen 1 rank 0 ===="
BOUND = 1 << 20


def log_of(path: Path, bytes_max: int | None = BOUND, older: int = 1) -> RotatingFile:
    return RotatingFile(path, HEADER, pytest.fail, LogLimits(bytes_max, older))


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


def test_with_older_files_every_line_of_them_is_there_once_and_in_order(tmp_path: Path) -> None:
    """Each file begins with lines that stand in the one before, too, and says how many bytes of them there are."""
    path = tmp_path / "workerlog.0"
    log = log_of(path, 4 * BOUND, older=7)
    count = 180_000
    for start in range(0, count, 100):
        log.write(b"".join(map(number, range(start, start + 100))))
    log.close()
    files = [*(path.with_name(f"workerlog.0.{at}") for at in range(7, 0, -1)), path]
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert sum(file.stat().st_size for file in files) <= 4 * BOUND
    whole = b""
    for at, file in enumerate(files):
        text = file.read_bytes()
        gap = re.search(rb"==== \d+ bytes of this start are left out here, see .*; its last (\d+) follow ====\n", text)
        begins = len(HEADER) + 1
        if gap is not None:
            begins = gap.end() + int(gap[1])
            assert not at or whole.endswith(text[gap.end() : begins])
        whole += text[begins:]
    first = int(whole.split()[1])
    assert whole == b"".join(map(number, range(first, count)))
    assert first < 40_000


class Killed(BaseException):
    """What SIGKILL is to a process."""


@pytest.mark.parametrize("renames", range(4))
def test_a_writer_that_is_killed_at_the_turn_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    path, left = tmp_path / "workerlog.0", 10**9
    replace = os.replace

    def until_killed(one: Path, other: Path) -> None:
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        replace(one, other)

    monkeypatch.setattr(os, "replace", until_killed)
    log, written = log_of(path, 2 * BOUND, older=3), 0

    def write() -> None:
        nonlocal written
        log.write(number(written) * 1000)
        written += 1

    while not path.with_name("workerlog.0.3").exists():
        write()
    kept = {text for file in tmp_path.iterdir() for text in file.read_text().splitlines()[1:]}
    left = renames
    with contextlib.suppress(Killed):
        while True:
            write()
            kept.add(number(written - 1).decode().rstrip())
    left = 10**9
    again = log_of(path, 2 * BOUND, older=3)
    again.line("it goes on")
    again.close()
    there = {text for file in tmp_path.iterdir() for text in file.read_text().splitlines()[1:]}
    oldest = {line for line in kept - there if line.startswith("line")}
    assert len(oldest) * 11_000 * 16 // 11 <= BOUND, "only the oldest file is gone, if it went"
    assert f"line {written - 1:010}" in there
    assert "it goes on" in there


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
    log = RotatingFile(path, HEADER, told.append, LogLimits(BOUND))
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
    assert told == [f"cannot write {path} (File too large); its worker's output is not logged"]


def test_a_folder_in_which_nothing_can_be_renamed_costs_the_text_and_nothing_else(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "workerlog.0"
    (tmp_path / "workerlog.0.1").mkdir()
    log = RotatingFile(path, HEADER, told.append, LogLimits(BOUND))
    for _ in range(30):
        log.write(b"x" * 100_000)
    log.close()
    assert path.stat().st_size <= BOUND // 2
    assert told == [f"cannot write {path} (Is a directory); its worker's output is not logged"]


def test_what_never_came_is_counted_in_front_of_the_next_line_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "workerlog.0"
    log = log_of(path)
    log.write(b"one\ntw")
    log.note_lost_bytes(7, "the disk was stalled")
    log.write(b"four\n")
    log.note_lost_bytes(0, "")
    log.note_lost_bytes(3, "the disk was stalled")
    log.close()
    assert path.read_text().splitlines() == [
        *(HEADER, "one", "tw", "==== 7 bytes are missing here: the disk was stalled ====", "four"),
        "==== 3 bytes are missing here: the disk was stalled ====",
    ]


def test_a_disk_that_says_at_the_end_that_it_has_no_room_is_told_once_and_no_other_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a file that was closed may be another one's by then."""
    monkeypatch.setattr(os, "close", full_on_close.refuses("/workerlog."))
    told: list[str] = []
    path = tmp_path / "workerlog.0"
    before = os.listdir("/proc/self/fd")
    log = RotatingFile(path, HEADER, told.append, LogLimits(BOUND))
    for count in range(0, 100_000, 1000):
        log.write(b"".join(map(number, range(count, count + 1000))))
        assert path.read_bytes().endswith(number(count + 999)), "it goes on in the file that was begun"
    log.close()
    log.close()
    log.write(b"late")
    assert os.listdir("/proc/self/fd") == before
    assert told == [f"cannot write {path} ({full_on_close.WORDS}); its worker's output is not logged"]


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
    log = RotatingFile(path, HEADER, told.append, LogLimits(BOUND))
    log.write(b"text")
    log.line("a line")
    log.close()
    monkeypatch.undo()
    assert os.listdir("/proc/self/fd") == before
    assert told == [f"cannot write {path} ({os.strerror(errno.ESTALE)}); its worker's output is not logged"]
