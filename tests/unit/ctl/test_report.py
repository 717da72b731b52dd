"""Where `elastic-ctl report` writes its file, and names that cannot be one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.errors import ConfigError
from launcher.ctl.report import _check_absent, _keep

HTML = b"<!doctype html>"


def test_a_file_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".html")
    for html in (b"old", HTML):
        _keep(path, html)
    assert path.read_bytes() == HTML
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("x" * 300, _check_absent),
        ("x" * 300, lambda path: _keep(path, HTML)),
        ("file/below", lambda path: _keep(path, HTML)),
        ("nowhere/below", lambda path: _keep(path, HTML)),
        (".", lambda path: _keep(path, HTML)),
        ("/", lambda path: _keep(path, HTML)),
    ],
)
def test_a_name_that_cannot_be_one_is_said_in_a_line(
    name: str, write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="cannot be written"):
        write(Path(name))
    assert os.listdir(tmp_path) == ["file"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    _keep(path, HTML)
    assert os.read(reader, 100) == HTML
    os.close(reader)
    assert path.is_fifo()
