"""What torch's @record writes, a worker's step, and what anybody else may have put there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.errors.error_handler import ErrorHandler

from launcher.workers.reports import worker_files
from tests.support import full_on_close


def test_what_torch_writes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    try:
        raise ValueError("the data\nis not there")
    except ValueError as error:
        ErrorHandler().record_exception(error)
    found = worker_files.traceback_lines(path)
    assert found[0] == "Traceback (most recent call last):"
    assert found[-2:] == ("ValueError: the data", "is not there")


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"message": "only a word"}, ("only a word",)),
        (
            {"message": {"message": "Error: x", "extraInfo": {"py_callstack": "Trace\nError: x\n"}}},
            ("Trace", "Error: x"),
        ),
        ({"message": {"message": "own words", "extraInfo": {"py_callstack": "Trace"}}}, ("Trace", "own words")),
        ({"message": {"message": "\x1b[31mred\x07"}}, ("red",)),
        ({"message": {"message": 3, "extraInfo": []}}, ()),
        ({"message": None}, ()),
        ({}, ()),
        ([1], ()),
        (7, ()),
    ],
)
def test_any_document_gives_lines_or_nothing(document: Any, found: tuple[str, ...]) -> None:
    assert worker_files.parse_traceback_lines(json.dumps(document).encode()) == found


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"message": "\\ud800"}'])
def test_a_damaged_file_is_nothing(data: bytes) -> None:
    assert worker_files.parse_traceback_lines(data) in ((), ("\ufffd",))


def test_a_file_that_is_not_there_or_huge_or_no_file_is_nothing(tmp_path: Path) -> None:
    good = b'{"message": "x"}'
    huge, folder, pipe, link = (tmp_path / name for name in ("huge", "folder", "pipe", "link"))
    huge.write_bytes(good + b" " * worker_files.ERROR_BYTES_MAX)
    folder.mkdir()
    os.mkfifo(pipe)
    (tmp_path / "good").write_bytes(good)
    link.symlink_to(tmp_path / "good")
    assert worker_files.traceback_lines(tmp_path / "good") == ("x",)
    for path in (tmp_path / "missing", huge, folder, pipe, link):
        assert worker_files.traceback_lines(path) == ()


def test_a_long_traceback_keeps_its_end() -> None:
    stack = "\n".join(f"line {number}" for number in range(10 * worker_files.LINES_MAX))
    document = {"message": {"message": "Error: x", "extraInfo": {"py_callstack": stack}}}
    found = worker_files.parse_traceback_lines(json.dumps(document).encode())
    assert len(found) <= worker_files.LINES_MAX + 1
    assert found[-1] == "Error: x"


def test_a_disk_that_refuses_to_close_what_was_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, progress = tmp_path / "error", tmp_path / "progress"
    error.write_text('{"message": "words"}')
    progress.write_text("7")
    monkeypatch.setattr(os, "close", full_on_close.refuses(str(tmp_path)))
    assert (worker_files.traceback_lines(error), worker_files.read_step(progress)) == (("words",), 7)
