"""What a node writes down about where everybody is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from elastic.core.model import ChangeReason
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskMember
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.logs.writer import SyncSink
from launcher.workers.endpoint_files import EndpointFiles


def test_a_roster_file_that_cannot_be_written_is_said_and_ends_nothing(tmp_path: Path) -> None:
    place = TaskMember("n", "127.0.0.1", (7000,), (8000,), (Task(Role.SERVER, 0),))
    generation = ClusterSpec(g=1, run=1, leader="", why=ChangeReason.FIRST, reason="", members=(place,), slots=4)
    log, private = tmp_path / "log", tmp_path / "private"
    log.mkdir()
    private.mkdir()
    reading, writing = os.pipe()
    console = Console(writing)
    sink = SyncSink(lambda text, quietly: pytest.fail(text))
    lists = EndpointFiles(log, private, sink, AgentLog("n", console))
    lists.write(generation)
    assert b'"servers":["127.0.0.1:8000"]' in lists.roster_file.read_bytes()
    shutil.rmtree(private)
    lists.write(generation)
    said = os.read(reading, 10_000).decode()
    assert "roster.json (No such file or directory); it may be out of date" in said
