"""events.jsonl: what happened, for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic.core.agent.actions import Action, NoteSilence, SilenceStep, StopWorkers
from elastic.core.agent.events import Event, SessionLost, Tick, WorkerExited
from elastic.core.model import Cause
from launcher.logs import shared_file
from launcher.logs.event_log import FILE, JsonEventLog
from tests.support.agent_harness import Bench, running
from tests.support.job_transcript import worker_exit


def read(folder: Path, name: str = "events.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def log_in(folder: Path, node: str) -> JsonEventLog:
    return JsonEventLog(shared_file.SharedLog(folder / FILE).append, "j1", node)


def observed(folder: Path, bench: Bench, event: Event, *actions: Action) -> list[dict[str, Any]]:
    """What is written of one event, beside what the store shows."""
    log = log_in(folder, "b")
    log.observe(bench.facts, event, actions, ())
    return [line for line in read(folder) if line["what"] not in ("generation", "go")]


def test_every_line_says_when_which_job_and_who(tmp_path: Path) -> None:
    log_in(tmp_path, "h-1").write("left", 3, {"exit_code": 0})
    (line,) = read(tmp_path)
    assert line.pop("time").endswith("+00:00")
    assert line == {"job": "j1", "node": "h-1", "what": "left", "generation": 3, "exit_code": 0}


def test_a_generation_and_its_go_are_written_once(tmp_path: Path) -> None:
    bench = running()
    log = log_in(tmp_path, "b")
    for _ in range(2):
        log.observe(bench.facts, bench.seen(), (), ())
    generation, go = read(tmp_path)
    assert (generation["what"], generation["why"], generation["m_id"], generation["nodes"]) == (
        *("generation", "first", 1),
        ["a", "b"],
    )
    assert (go["what"], go["generation"], go["restarts"]) == ("go", 1, 0)


def test_the_end_of_a_worker_says_how_and_whether_we_stopped_it(tmp_path: Path) -> None:
    (line,) = observed(tmp_path, running(), WorkerExited(1, worker_exit(2, -9), own=False))
    assert (line["what"], line["rank"], line["role"], line["code"], line["stopped"]) == (
        *("worker ended", 2, "worker", -9),
        True,
    )


def test_a_stop_a_lost_lease_and_a_failure_say_why(tmp_path: Path) -> None:
    stop, lost = StopWorkers(1, 2.0, "because h was lost"), SessionLost(7, "TTL 0")
    lines = observed(tmp_path, running(), lost, stop)
    assert [(line["what"], line.get("reason"), line.get("why")) for line in lines] == [
        ("lease lost", "TTL 0", None),
        ("stopped", None, "because h was lost"),
    ]
    cause = Cause(g=1, host="h", node="a", exits=(worker_exit(3, 5),), ranks=(3, 4), world_size=8)
    log_in(tmp_path, "b").failure(cause)
    failure = read(tmp_path)[-1]
    assert (failure["ranks"], failure["rank"], failure["host"], failure["words"]) == ([3, 4], 3, "h", "exit code 5")


def test_a_node_that_is_suspected_cleared_or_evicted_is_named_with_its_host_its_silence_and_the_nodes_that_tried(
    tmp_path: Path,
) -> None:
    notes = [NoteSilence(step, "a", "host-a", 1.23456, ("c", "d")) for step in SilenceStep]
    lines = observed(tmp_path, running(), Tick(), *notes)
    assert [line["what"] for line in lines] == ["suspected", "cleared", "evicted"]
    found = {(line["generation"], line["node"], line["of"], line["host"], line["silent_s"]) for line in lines}
    assert found == {(1, "b", "a", "host-a", 1.235)}
    assert all(line["by"] == ["c", "d"] for line in lines)


def test_the_file_has_a_bound_and_the_newest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_file, "BYTES_MAX", 1000)
    log = log_in(tmp_path, "h-1")
    for number in range(100):
        log.write("stopped", 1, {"number": number})
    sizes = [(tmp_path / name).stat().st_size for name in ("events.jsonl", "events.1.jsonl")]
    assert max(sizes) < 1200
    numbers = [line["number"] for name in ("events.1.jsonl", "events.jsonl") for line in read(tmp_path, name)]
    assert numbers == list(range(numbers[0], 100))
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "events.1.jsonl"}


def test_a_world_of_thousands_loses_its_list_and_not_its_line(tmp_path: Path) -> None:
    log_in(tmp_path, "h-1").write("generation", 1, {"m_id": 0, "nodes": ["node"] * 20_000})
    (line,) = read(tmp_path)
    assert "nodes" not in line
    assert line["m_id"] == 0
