"""JSON lines of the console and of launcher.log."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.core.ps.model import Role
from launcher.logs.json_format import JsonFormatter, JsonLine, LineKind, Severity, WorkerOutputLine

AT = datetime(2026, 11, 23, 10, 0, 0, 123456, tzinfo=UTC)


@pytest.fixture
def lines() -> JsonFormatter:
    return JsonFormatter("j1", "10.0.0.5-2ad1")


def test_what_the_agent_says_has_time_level_job_node_generation_kind_and_text(lines: JsonFormatter) -> None:
    assert lines.agent_line(AT, "joined", Severity.INFO) == (
        b'{"time":"2026-11-23T10:00:00.123+00:00","level":"info","job":"j1","node":"10.0.0.5-2ad1","generation":null,'
        b'"what":"said","text":"joined"}\n'
    )
    lines.generation = 3
    said = json.loads(lines.agent_line(AT, "ABORT!!!\nrank 2", Severity.ERROR, LineKind.REPORT))
    assert (said["generation"], said["what"], said["text"]) == (3, "report", "ABORT!!!\nrank 2")


def test_what_a_worker_writes_has_its_ranks_its_stream_and_its_generation(lines: JsonFormatter) -> None:
    line = lines.worker_line(Role.WORKER, 5, 1, 2, "stderr", AT, b"step 1")
    assert json.loads(line) == {
        "time": "2026-11-23T10:00:00.123+00:00",
        "level": "info",
        "job": "j1",
        "node": "10.0.0.5-2ad1",
        "generation": 2,
        "what": "output",
        "text": "step 1",
        "role": "worker",
        "rank": 5,
        "local_rank": 1,
        "stream": "stderr",
    }


@given(st.binary(max_size=200))
def test_whatever_a_worker_writes_is_one_valid_line(data: bytes) -> None:
    line = JsonFormatter("j", "n").worker_line(Role.SERVER, 0, 0, 1, "stdout", AT, data)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = msgspec.json.decode(line, type=WorkerOutputLine)
    assert found.text == data.decode(errors="replace")


@given(st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=200))
def test_whatever_the_agent_says_is_one_valid_line(text: str) -> None:
    line = JsonFormatter("j", "n").agent_line(AT, text, Severity.WARNING)
    assert line.count(b"\n") == 1
    assert msgspec.json.decode(line, type=JsonLine).level is Severity.WARNING
