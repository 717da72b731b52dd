"""What a node writes down about where everybody is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from elastic.core.model import Generation, Place, Role, Seat, Why
from launcher.logs.console import Console
from launcher.logs.logger import Narrator
from launcher.logs.writer import Directly
from launcher.workers.endpoint_files import Lists


def test_a_roster_file_that_cannot_be_written_is_said_and_ends_nothing(tmp_path: Path) -> None:
    place = Place("n", "127.0.0.1", (7000,), (8000,), (Seat(Role.SERVER, 0),))
    generation = Generation(g=1, run=1, tag="", why=Why.FIRST, reason="", members=(place,), slots=4)
    log, private = tmp_path / "log", tmp_path / "private"
    log.mkdir()
    private.mkdir()
    reading, writing = os.pipe()
    console = Console(writing)
    sink = Directly(lambda text, quietly: pytest.fail(text))
    lists = Lists(log, private, sink, Narrator("n", console))
    lists.write(generation)
    assert b'"servers":["127.0.0.1:8000"]' in lists.roster_file.read_bytes()
    shutil.rmtree(private)
    lists.write(generation)
    said = os.read(reading, 10_000).decode()
    assert "roster.json cannot be written (No such file or directory); it may be out of date" in said
