"""What a node writes down for its workers, where it needs no nursery."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from elastic.model import Generation, Place, Role, Seat, Why
from launcher.config import parse
from launcher.console import Console
from launcher.logs import Narrator
from launcher.logwriter import Directly
from launcher.node import NodeWorkers


def test_a_roster_file_that_cannot_be_written_is_said_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = tmp_path / "train.py"
    script.touch()
    place = Place("n", "127.0.0.1", (7000,), (8000,), (Seat(Role.SERVER, 0),))
    generation = Generation(g=1, run=1, tag="", why=Why.FIRST, reason="", members=(place,), slots=4)

    async def story() -> str:
        reading, writing = os.pipe()
        console = Console(writing)
        config = parse(["--log_dir", str(tmp_path / "log"), "--server_num", "1", "--worker_num", "1", str(script)], {})
        sink = Directly(lambda text, quietly: pytest.fail(text))
        node = NodeWorkers(config, "n", "127.0.0.1", Narrator("n", console), (console, console), lambda _: None, sink)
        (tmp_path / "log").mkdir()
        node.tell_roster(generation)
        assert b'"servers":["127.0.0.1:8000"]' in node._roster_file.read_bytes()
        shutil.rmtree(node._roster_file.parent)
        node.tell_roster(generation)
        await node.close()
        return os.read(reading, 10_000).decode()

    said = asyncio.run(story())
    assert "roster.json cannot be written (No such file or directory); it may be out of date" in said
