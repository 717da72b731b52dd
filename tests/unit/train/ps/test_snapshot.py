"""A server's snapshots: whole or not there, the newest first."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from elastic.errors import CheckpointError
from elastic.train.ps.snapshot import KEEP, Snapshots

STATE = {"holdings": {"values": [torch.arange(3.0), None]}, "workers": [(0, "0-a", 5)], "step": 4}


def shelf(folder: Path, servers: int = 2) -> Snapshots:
    return Snapshots(folder, 1, servers)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "server-1").iterdir())


def test_what_was_written_is_loaded_with_its_time(tmp_path: Path) -> None:
    assert shelf(tmp_path).load() is None
    target = shelf(tmp_path).write(STATE, 1234.5)
    assert target == tmp_path / "server-1" / "snapshot-0000000001"
    found = shelf(tmp_path).load()
    assert found is not None
    state, meta = found
    assert meta.written_at == 1234.5
    assert state["workers"] == [(0, "0-a", 5)]
    assert torch.equal(state["holdings"]["values"][0], torch.arange(3.0))


def test_the_newest_two_stay_and_nothing_else(tmp_path: Path) -> None:
    for step in range(4):
        shelf(tmp_path).write({"step": step}, 0.0)
    assert names(tmp_path) == ["snapshot-0000000003", "snapshot-0000000004"]
    assert len(names(tmp_path)) == KEEP
    found = shelf(tmp_path).load()
    assert found is not None
    assert found[0]["step"] == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [("state.pt", b"cut"), ("state.pt", None), ("meta.json", b"{}"), ("meta.json", b"\xff"), ("meta.json", None)],
)
def test_a_damaged_one_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None
) -> None:
    shelf(tmp_path).write({"step": 1}, 0.0)
    newest = shelf(tmp_path).write({"step": 2}, 0.0)
    (newest / name).unlink()
    if content is not None:
        (newest / name).write_bytes(content)
    found = shelf(tmp_path).load()
    assert found is not None
    assert found[0]["step"] == 1
    assert f"{newest} is damaged" in caplog.text


def test_one_that_wants_to_run_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (exec, ("raise SystemExit('ran')",))

    shelf(tmp_path).write({"step": Evil()}, 0.0)
    assert shelf(tmp_path).load() is None


def test_one_of_another_number_of_servers_is_not_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf(tmp_path).write(STATE, 0.0)
    with caplog.at_level(logging.WARNING):
        assert shelf(tmp_path, servers=3).load() is None
    assert "is of server 1 of 2, this is server 1 of 3" in caplog.text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "server-1").write_text("a file")
    with pytest.raises(CheckpointError, match="writing a snapshot"):
        shelf(tmp_path).write(STATE, 0.0)
