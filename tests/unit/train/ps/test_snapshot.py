"""A server's snapshots: whole or not there, the newest first."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.errors import CheckpointError
from elastic.train.checkpoint import atomic_files, manifest
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.ps.snapshot import KEEP, Snapshots

STATE = {"holdings": {"values": [torch.arange(3.0), None]}, "workers": [(0, "0-a", 5)], "step": 4}


def shelf(folder: Path, servers: int = 2) -> Snapshots:
    return Snapshots(folder, 1, servers)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "server-1").iterdir())


def write_earlier(folder: Path, number: int, state: dict[str, Any], written_at: float = 0.0) -> Path:
    """A snapshot as versions before layout 2 wrote it, byte for byte."""
    data = io.BytesIO()
    torch.save(state, data)
    digest = hashlib.sha256(data.getvalue()).hexdigest()
    target = folder / "server-1" / f"snapshot-{number:010}"
    target.mkdir(parents=True)
    (target / "state.pt").write_bytes(data.getvalue())
    meta = {"written_at": written_at, "index": 1, "servers": 2, "sha256": digest}
    (target / "meta.json").write_text(json.dumps(meta, separators=(",", ":")))
    return target


def loaded_step(folder: Path) -> object:
    found = shelf(folder).load()
    assert found is not None
    return found[0]["step"]


def test_what_was_written_is_loaded_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shelf(tmp_path).load() is None
    monkeypatch.setattr("time.time", lambda: 1234.5)
    shelf(tmp_path).write(STATE)
    found = shelf(tmp_path).load()
    assert found is not None
    state, written_at = found
    assert written_at == 1234.5
    assert state["workers"] == [(0, "0-a", 5)]
    assert torch.equal(state["holdings"]["values"][0], torch.arange(3.0))


def test_a_snapshot_is_a_checkpoint_that_reports_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_PROGRESS_FILE", str(tmp_path / "progress"))
    shelf(tmp_path).write(STATE)
    (candidate,) = Checkpoints(tmp_path / "server-1").candidates()
    assert (candidate.step, list(candidate.meta.parts)) == (1, ["state"])
    assert not (tmp_path / "progress").exists()


def test_the_newest_two_stay_and_nothing_else(tmp_path: Path) -> None:
    for step in range(4):
        shelf(tmp_path).write({"step": step})
    assert names(tmp_path) == ["step-0000000003.g0", "step-0000000004.g0"]
    assert len(names(tmp_path)) == KEEP
    assert loaded_step(tmp_path) == 3


@pytest.mark.parametrize(
    ("name", "content"),
    [("state.pt", b"cut"), ("state.pt", None), ("meta.json", b"{}"), ("meta.json", b"\xff"), ("meta.json", None)],
)
def test_a_damaged_one_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None
) -> None:
    shelf(tmp_path).write({"step": 1})
    shelf(tmp_path).write({"step": 2})
    newest = tmp_path / "server-1" / "step-0000000002.g0"
    (newest / name).unlink()
    if content is not None:
        (newest / name).write_bytes(content)
    assert loaded_step(tmp_path) == 1
    assert f"{newest} is damaged" in caplog.text
    assert "using the previous snapshot" in caplog.text


def test_one_that_wants_to_run_code_is_neither_written_nor_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return (exec, ("raise SystemExit('ran')",))

    with pytest.raises(CheckpointError, match=r"weights_only=True\) rejects"):
        shelf(tmp_path).write({"step": Evil()})
    write_earlier(tmp_path, 1, {"step": Evil()})
    assert shelf(tmp_path).load() is None


def test_one_of_another_number_of_servers_is_not_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf(tmp_path).write(STATE)
    with caplog.at_level(logging.WARNING):
        assert shelf(tmp_path, servers=3).load() is None
    assert "belongs to server 1 of 2, but this is server 1 of 3" in caplog.text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "server-1").write_text("a file")
    with pytest.raises(CheckpointError, match="a part of that path is a file"):
        shelf(tmp_path).write(STATE)


def test_a_disk_that_withholds_a_snapshot_is_an_error_and_not_a_start_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def withhold(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    shelf(tmp_path).write(STATE)
    monkeypatch.setattr(Path, "read_bytes", withhold)
    with pytest.raises(CheckpointError, match=r"reading a snapshot in .*server-1 .*Input/output error"):
        shelf(tmp_path).load()


class TestEarlierVersions:
    def test_what_they_wrote_is_loaded_with_its_time(self, tmp_path: Path) -> None:
        write_earlier(tmp_path, 11, {"step": 1})
        write_earlier(tmp_path, 12, STATE, 1234.5)
        found = shelf(tmp_path).load()
        assert found is not None
        state, written_at = found
        assert written_at == 1234.5
        assert state["workers"] == [(0, "0-a", 5)]
        assert torch.equal(state["holdings"]["values"][0], torch.arange(3.0))

    @pytest.mark.parametrize(
        ("name", "content"), [("state.pt", b"cut"), ("state.pt", None), ("meta.json", b"{}"), ("meta.json", None)]
    )
    def test_a_damaged_one_is_named_and_passed_over(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, content: bytes | None
    ) -> None:
        write_earlier(tmp_path, 1, {"step": 1})
        newest = write_earlier(tmp_path, 2, {"step": 2})
        (newest / name).unlink()
        if content is not None:
            (newest / name).write_bytes(content)
        assert loaded_step(tmp_path) == 1
        assert f"{newest} is damaged" in caplog.text

    def test_one_of_another_number_of_servers_is_not_loaded(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        write_earlier(tmp_path, 1, STATE)
        assert shelf(tmp_path, servers=3).load() is None
        assert "belongs to server 1 of 2, but this is server 1 of 3" in caplog.text

    def test_new_ones_count_on_from_them_and_take_their_place(self, tmp_path: Path) -> None:
        write_earlier(tmp_path, 11, {"step": 1})
        write_earlier(tmp_path, 12, {"step": 2})
        shelf(tmp_path).write({"step": 3})
        assert names(tmp_path) == ["snapshot-0000000012", "step-0000000013.g0"]
        assert loaded_step(tmp_path) == 3
        shelf(tmp_path).write({"step": 4})
        assert names(tmp_path) == ["step-0000000013.g0", "step-0000000014.g0"]
        atomic_files.discard(tmp_path / "server-1" / manifest.name(14, 0))
        assert loaded_step(tmp_path) == 3
